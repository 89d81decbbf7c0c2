// W4Ax's inner product for any machine.
#include "cpu/w4ax/kernels.h"

#include <cmath>

namespace lpq::w4ax {
namespace {

void block_sums(const int16_t* x, const int16_t* w, int64_t k, int32_t* sums) {
  for (int64_t r = 0; r < kRows; ++r) {
    int32_t sum = 0;
    for (int64_t i = 0; i < kBlock; ++i) sum += static_cast<int32_t>(x[i]) * static_cast<int32_t>(w[r * k + i]);
    sums[r] = sum;
  }
}

#include "cpu/w4ax/kernels_body.h"

}  // namespace

const Kernels& kernels_generic() { return kKernels; }

}  // namespace lpq::w4ax
