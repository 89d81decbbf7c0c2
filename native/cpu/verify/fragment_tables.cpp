// Shows the tables that the emulated kernels feed their fragments by, so that tests can compare them with what a device
// was found to do (native/cuda/probe).
#include "cpu/verify/fragments.h"
#include "lpq/arguments.h"

namespace lpq::verify {
namespace {

// params: operand a, b or c of mma.m16n8k16. Output I32 [32, 8 | 4 | 4, 2]: row and column of each lane's elements.
void fragments(Call& call, Exec&) {
  Arguments a(call, "verify_fragments");
  const int operand = a.one_of("operand", {"a", "b", "c"}), elements = operand == 0 ? 8 : 4;
  const Tensor& out = a.output("table", {DType::i32}, {kLanes, elements, 2});
  a.done();
  for (int lane = 0; lane < kLanes; ++lane)
    for (int i = 0; i < elements; ++i) {
      const Cell cell = operand == 0 ? fragment_a(lane, i) : operand == 1 ? fragment_b(lane, i) : fragment_c(lane, i);
      out.data<int32_t>()[(lane * elements + i) * 2] = cell.row;
      out.data<int32_t>()[(lane * elements + i) * 2 + 1] = cell.col;
    }
}
LPQ_OP(fragments, "verify_fragments");

}  // namespace
}  // namespace lpq::verify
