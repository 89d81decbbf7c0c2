// copy (src/bench/ops.ts): bytes from one tensor to another, by every thread.
#include <cstring>

#include "ops/reshape.h"

namespace lpq {
namespace {

void copy(Call& call, Exec& exec) {
  const auto [from, to] = ops::Copy::parse(call);
  exec.pool.parallel_for(static_cast<int64_t>(from.bytes()), int64_t{4} << 20, [&](int64_t begin, int64_t end, int) {
    std::memmove(to.raw() + begin, from.raw() + begin, static_cast<size_t>(end - begin));
  });
}
LPQ_OP(copy, "copy");

}  // namespace
}  // namespace lpq
