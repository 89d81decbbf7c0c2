// Round-to-nearest for any machine.
#include "cpu/quant/rtn_kernels.h"
#include "lpq/half.h"

namespace lpq {
namespace {

void load_f16(const std::byte* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) {
    uint16_t half;
    __builtin_memcpy(&half, from + 2 * i, 2);
    to[i] = f16_to_f32(half);
  }
}

#include "cpu/quant/rtn_kernels.inc"

}  // namespace

const RtnKernels& rtn_kernels_generic() { return kKernels; }

}  // namespace lpq
