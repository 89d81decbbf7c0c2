// copy (src/bench/ops.ts): bytes from one tensor to another, by every thread.
#include <cstring>

#include "ops/reshape.h"

namespace lpq {
namespace {

void copy(Call& call, Exec& exec) {
  const ops::Copy op(call);
  exec.pool.parallel_for(static_cast<int64_t>(op.from.bytes()), int64_t{4} << 20, [&](int64_t begin, int64_t end, int) {
    std::memmove(op.to.raw() + begin, op.from.raw() + begin, static_cast<size_t>(end - begin));
  });
}
LPQ_OP(copy, "copy");

}  // namespace
}  // namespace lpq
