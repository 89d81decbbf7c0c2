// copy (src/bench/ops.ts): bytes from one tensor to another, by every thread.
#include <cstring>

#include "lpq/checks.h"
#include "lpq/exec.h"

namespace lpq {
namespace {

void copy(Call& call, Exec& exec) {
  const Tensor &from = call.input(0), &to = call.output(0);
  require(from.bytes() == to.bytes(), "copy: the tensors have different sizes");
  exec.pool.parallel_for(static_cast<int64_t>(from.bytes()), int64_t{4} << 20, [&](int64_t begin, int64_t end, int) {
    std::memmove(to.raw() + begin, from.raw() + begin, static_cast<size_t>(end - begin));
  });
}
LPQ_OP(copy, "copy");

}  // namespace
}  // namespace lpq
