// Instantiations of attention_backward.cuh, by the dims of queries and of values: blocks of a task are those of its
// heads (kv heads), one after another.
#include "cuda/nn/attention_backward.cuh"

using namespace lpq::cuda;

#define LPQ_ATTENTION_BACKWARD(hd, vd, row_keys, resident, keys, queries, blocks)                    \
  extern "C" __global__ void __launch_bounds__(128, blocks)                                          \
      lpq_attention_backward_rows_##hd##_##vd(AttentionGradient a) {                                 \
    gradient_by_rows<hd, vd, row_keys, resident>(a, blockIdx.x % a.heads, blockIdx.x / a.heads);     \
  }                                                                                                  \
  extern "C" __global__ void __launch_bounds__(128, blocks)                                          \
      lpq_attention_backward_columns_##hd##_##vd(AttentionGradient a) {                              \
    gradient_by_columns<hd, vd, keys, queries>(a, blockIdx.x % a.kv_heads, blockIdx.x / a.kv_heads); \
  }
LPQ_ATTENTION_BACKWARD(64, 64, 64, true, 64, 64, 3)
LPQ_ATTENTION_BACKWARD(128, 128, 64, true, 64, 64, 2)
LPQ_ATTENTION_BACKWARD(192, 128, 32, false, 64, 32, 2)
LPQ_ATTENTION_BACKWARD(256, 256, 16, false, 32, 32, 2)
