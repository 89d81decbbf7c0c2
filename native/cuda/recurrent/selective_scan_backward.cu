// Kernels of the gradient of selective state spaces (selective_scan_backward.cuh), and of what its blocks leave.
#include "cuda/recurrent/selective_scan_backward.cuh"

using namespace lpq;
using namespace lpq::cuda;

// grid: (heads of the call * blocks of kColumns columns, sequences).
#define LPQ_SCAN_BACKWARD_OF(name, r, channels)                                                                   \
  extern "C" __global__ void __launch_bounds__(kColumnThreads) name(ScanGradient a, Past past, KeptStates kept) { \
    __shared__ __align__(16) ScanRoom<r, channels> room;                                                          \
    scan_backward<r, channels>(a, past, kept, static_cast<int>(blockIdx.y), room);                                \
  }
#define LPQ_SCAN_BACKWARD(r)                            \
  LPQ_SCAN_BACKWARD_OF(lpq_scan_backward_##r, r, false) \
  LPQ_SCAN_BACKWARD_OF(lpq_scan_backward_channels_##r, r, true)
LPQ_SCAN_BACKWARD(2)
LPQ_SCAN_BACKWARD(4)
LPQ_SCAN_BACKWARD(8)
LPQ_SCAN_BACKWARD(16)
LPQ_SCAN_BACKWARD(32)

// to [T, groups, size] of heads first_head .. first_head + count: sums of `parts` blocks a head [blocks, T, size], in
// order, after those of heads before.
extern "C" __global__ void lpq_scan_backward_groups(const float* from, float* to, int tokens, int first_head, int count,
                                                    int share, int groups, int size, int parts) {
  const index_t each = static_cast<index_t>(gridDim.x) * blockDim.x, all = static_cast<index_t>(tokens) * groups * size;
  for (index_t i = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < all; i += each) {
    const int n = i % size, group = i / size % groups;
    const index_t t = i / size / groups;
    const int begin = max(group * share, first_head), end = min((group + 1) * share, first_head + count);
    if (begin >= end) continue;
    float sum = begin == group * share ? 0.0f : to[i];
    for (index_t block = static_cast<index_t>(begin - first_head) * parts,
                 last = static_cast<index_t>(end - first_head) * parts;
         block < last; ++block)
      sum += from[(block * tokens + t) * size + n];
    to[i] = sum;
  }
}

// dstep of columns first .. first + count of each token's `width`: sums of `parts` numbers [count * parts, T], or one
// of the tensor's shape (parts 0), times the slope of the step with respect to what it is made of.
extern "C" __global__ void lpq_scan_backward_steps(const float* step, const void* bias, int bias_type, float least,
                                                   float most, const float* from, float* dstep, int tokens, int first,
                                                   int count, int width, int parts) {
  const index_t each = static_cast<index_t>(gridDim.x) * blockDim.x, all = static_cast<index_t>(tokens) * count;
  for (index_t i = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < all; i += each) {
    const index_t t = i / count, at = t * width + first + i % count;
    float sum = parts == 0 ? from[at] : 0.0f;
    for (int p = 0; p < parts; ++p) sum += from[((i % count) * parts + p) * tokens + t];
    const float x = step[at] + load_any(bias, bias_type, first + i % count);
    const float d = x > 20.0f ? x : log1pf(expf(x));
    dstep[at] = d < least || d > most ? 0.0f : sum / (1.0f + expf(-x));
  }
}
