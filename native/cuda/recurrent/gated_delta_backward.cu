// Kernels of the gated delta rule's gradient (gated_delta_backward.cuh), and of what its blocks leave.
#include "cuda/recurrent/gated_delta_backward.cuh"

using namespace lpq;
using namespace lpq::cuda;

// grid: (heads of the call * blocks of kColumns columns, sequences).
#define LPQ_DELTA_BACKWARD_OF(name, r, channels)                                                                   \
  extern "C" __global__ void __launch_bounds__(kColumnThreads) name(DeltaGradient a, Past past, KeptStates kept) { \
    __shared__ __align__(16) DeltaRoom<r, channels> room;                                                          \
    delta_backward<r, channels>(a, past, kept, static_cast<int>(blockIdx.y), room);                                \
  }
#define LPQ_DELTA_BACKWARD(r)                             \
  LPQ_DELTA_BACKWARD_OF(lpq_delta_backward_##r, r, false) \
  LPQ_DELTA_BACKWARD_OF(lpq_delta_backward_channels_##r, r, true)
LPQ_DELTA_BACKWARD(4)
LPQ_DELTA_BACKWARD(8)
LPQ_DELTA_BACKWARD(16)
LPQ_DELTA_BACKWARD(32)

// dx of x [T, key_heads, key_dim] of what was made of it, factor x / sqrt(x² + 1e-6), from first_key on: the gradient
// of that is the sum of `share` blocks a key [blocks, T, key_dim], in order. A block of 128 threads a token and a key;
// it has key_dim floats of shared memory.
extern "C" __global__ void __launch_bounds__(128)
    lpq_delta_backward_unit(const float* x, const float* parts, float* dx, int tokens, int first_key, int key_heads,
                            int key_dim, int share, float factor) {
  extern __shared__ float slope[];
  __shared__ float sums[2][4];
  const index_t t = blockIdx.x, at = (t * key_heads + first_key + blockIdx.y) * key_dim;
  float squares = 0, along = 0;
  for (int i = threadIdx.x; i < key_dim; i += blockDim.x) {
    float sum = 0;
    for (int s = 0; s < share; ++s)
      sum += parts[((blockIdx.y * share + s) * static_cast<index_t>(tokens) + t) * key_dim + i];
    slope[i] = sum;
    squares = __fmaf_rn(x[at + i], x[at + i], squares), along = __fmaf_rn(x[at + i], sum, along);
  }
  squares = warp_sum(squares), along = warp_sum(along);
  if (threadIdx.x % 32 == 0) sums[0][threadIdx.x / 32] = squares, sums[1][threadIdx.x / 32] = along;
  __syncthreads();
  squares = (sums[0][0] + sums[0][1]) + (sums[0][2] + sums[0][3]) + 1e-6f;
  along = ((sums[1][0] + sums[1][1]) + (sums[1][2] + sums[1][3])) / squares;
  const float by = factor / sqrtf(squares);
  for (int i = threadIdx.x; i < key_dim; i += blockDim.x) dx[at + i] = by * __fmaf_rn(-along, x[at + i], slope[i]);
}

// ddecay and dbeta of heads first_head .. first_head + count, which are `parts` blocks each; a decay has `per` gates a
// head.
extern "C" __global__ void lpq_delta_backward_gates(const float* decay, const float* beta, const void* rate,
                                                    int rate_type, const void* bias, int bias_type, const float* factor,
                                                    float strength, const float* of_decay, const float* of_beta,
                                                    float* ddecay, float* dbeta, int tokens, int first_head, int count,
                                                    int heads, int parts, int per) {
  const index_t each = static_cast<index_t>(gridDim.x) * blockDim.x, all = static_cast<index_t>(tokens) * count * per;
  for (index_t i = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < all; i += each) {
    const int channel = i % per, of = i / per % count, head = first_head + of;
    const index_t t = i / per / count, at = (t * heads + head) * per + channel;
    float sum = 0;
    for (int p = 0; p < parts; ++p)
      sum += of_decay[((static_cast<index_t>(of) * parts + p) * tokens + t) * per + channel];
    const float x = decay[at] + load_any(bias, bias_type, static_cast<index_t>(head) * per + channel);
    const float slope = -expf(load_any(rate, rate_type, head)) / (1.0f + expf(-x));
    ddecay[at] = sum * factor[at] * slope;
    if (channel > 0) continue;
    sum = 0;
    for (int p = 0; p < parts; ++p) sum += of_beta[(static_cast<index_t>(of) * parts + p) * tokens + t];
    const float up = expf(-fabsf(beta[t * heads + head])), both = 1.0f + up;
    dbeta[t * heads + head] = sum * strength * (up / (both * both));
  }
}
