// Shows the tables that the emulated kernels feed their fragments by, so that tests can compare them with what a device
// was found to do (native/cuda/probe).
#include <vector>

#include "cpu/verify/fragments.h"
#include "lpq/exec.h"

namespace lpq::verify {
namespace {

// params: operand a, b or c of mma.m16n8k16. Output I32 [32, 8 | 4 | 4, 2]: row and column of each lane's elements.
void fragments(Call& call, Exec&) {
  const std::string& operand = call.params.text("operand");
  require(operand == "a" || operand == "b" || operand == "c", "operand is none of a, b, c");
  const int elements = operand == "a" ? 8 : 4;
  const Tensor& out = call.output(0);
  require(out.dtype == DType::i32 && out.shape == std::vector<int64_t>{kLanes, elements, 2},
          "the table is I32 [32, elements, 2]");
  for (int lane = 0; lane < kLanes; ++lane)
    for (int i = 0; i < elements; ++i) {
      const Cell cell = operand == "a"   ? fragment_a(lane, i)
                        : operand == "b" ? fragment_b(lane, i)
                                         : fragment_c(lane, i);
      out.data<int32_t>()[(lane * elements + i) * 2] = cell.row;
      out.data<int32_t>()[(lane * elements + i) * 2 + 1] = cell.col;
    }
}
LPQ_OP(fragments, "verify_fragments");

}  // namespace
}  // namespace lpq::verify
