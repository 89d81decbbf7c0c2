// Instantiations of attention_backward_f32.cuh, of 32 times so many dims, and the bits of keys that are chosen.
#include "cuda/nn/attention_backward_f32.cuh"

using namespace lpq;
using namespace lpq::cuda;

#define LPQ_BACKWARD_F32(dims)                                       \
  extern "C" __global__ void __launch_bounds__(kGradientWarps * 32)  \
      lpq_attention_backward_f32_rows_##dims(ChainedGradient a) {    \
    chained_by_rows<dims>(a, blockIdx.x);                            \
  }                                                                  \
  extern "C" __global__ void __launch_bounds__(kGradientWarps * 32)  \
      lpq_attention_backward_f32_columns_##dims(ChainedGradient a) { \
    chained_by_columns<dims>(a, blockIdx.x);                         \
  }
LPQ_BACKWARD_F32(4)
LPQ_BACKWARD_F32(8)
LPQ_BACKWARD_F32(18)

// Bits of the runs that a token's choice names; seen is 0 before. A warp each.
extern "C" __global__ void lpq_attention_backward_seen(ChainedGradient a, unsigned* fault) {
  const index_t task = static_cast<index_t>(blockIdx.x) * kGradientWarps + threadIdx.x / 32;
  if (*a.count == 0 || task >= static_cast<index_t>(a.tokens) * a.choices) return;
  const int t = static_cast<int>(task / a.choices), last = (t - sequence_of(a, t).first) / a.block;
  const int* list = a.selected + task * a.top;
  bool any = false;
  for (int n = threadIdx.x % 32; n < a.top; n += 32) {
    const int run = list[n];
    if (run < -1 || run > last) *fault = 1;
    else if (run >= 0) {
      any = true;
      atomicOr(a.seen + task * a.words + run / 32, 1u << run % 32);
    }
  }
  if (!__any_sync(0xffffffffu, any)) *fault = 1;
}
