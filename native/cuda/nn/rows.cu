// Row by row: embedding, RMS norm, LayerNorm, rotary positions. Sums run in a fixed order: the same bytes every time.
#include "cuda/nn/block_sum.cuh"
#include "cuda/ptx/griddepcontrol.cuh"
#include "cuda/types.cuh"

using namespace lpq;

// Tells by being there that kernels launched early wait (griddepcontrol) for the operation before
// (CudaExec::launch_after).
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
extern "C" __global__ void lpq_follows() {}
#endif

// y[t] = table[ids[t]] * scale; one block a token.
extern "C" __global__ void lpq_embedding(const int* ids, const void* table, int type, float* y, float scale,
                                         index_t vocabulary, index_t width, unsigned* fault) {
  const index_t t = blockIdx.x;
  const int id = ids[t];
  if (id < 0 || id >= vocabulary) {
    if (threadIdx.x == 0) *fault = 1;
    return;
  }
  for (index_t c = threadIdx.x; c < width; c += blockDim.x)
    y[t * width + c] = load_any(table, type, id * width + c) * scale;
}

namespace {

// Where row r begins, `runs` of them in each `pitch` elements.
__device__ __forceinline__ index_t row_start(index_t r, int width, int runs, index_t pitch) {
  return runs == 1 ? r * pitch : r / runs * pitch + r % runs * width;
}

// A team of `threads` (32: one warp a row; else a whole block) normalises one row.
template <class X, class Y>
__device__ void rmsnorm(const X* x, const void* weight, int weight_type, Y* y, index_t rows, int width, int runs,
                        index_t pitch, float eps, float offset, int vec) {
  cuda::griddepcontrol_launch_and_wait();
  const bool by_warp = blockDim.y > 1;
  const index_t row = by_warp ? static_cast<index_t>(blockIdx.x) * blockDim.y + threadIdx.y : blockIdx.x;
  if (row >= rows) return;
  const index_t start = row_start(row, width, runs, pitch);
  const X* from = x + start;
  Y* to = y + start;
  float sum = 0;
  if (vec) {
    for (int c = threadIdx.x; c < width / 4; c += blockDim.x) {
      const float4 v = load4(from + 4 * c);
      sum = __fmaf_rn(v.x, v.x, sum);
      sum = __fmaf_rn(v.y, v.y, sum);
      sum = __fmaf_rn(v.z, v.z, sum);
      sum = __fmaf_rn(v.w, v.w, sum);
    }
  } else {
    for (int c = threadIdx.x; c < width; c += blockDim.x) {
      const float v = widen(from[c]);
      sum = __fmaf_rn(v, v, sum);
    }
  }
  sum = warp_sum(sum);
  if (!by_warp) {
    __shared__ float parts[32];
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (unsigned i = 0; i < blockDim.x / 32; ++i) sum += parts[i];
  }
  const float factor = 1.0f / sqrtf(sum / static_cast<float>(width) + eps);
  const auto gain_of = [&](int c) { return weight ? load_any(weight, weight_type, c) + offset : 1.0f; };
  if (vec) {
    for (int c = threadIdx.x; c < width / 4; c += blockDim.x) {
      const float4 v = load4(from + 4 * c);
      auto gain = [&](int i) { return gain_of(4 * c + i); };
      store4(to + 4 * c, make_float4(v.x * factor * gain(0), v.y * factor * gain(1), v.z * factor * gain(2),
                                     v.w * factor * gain(3)));
    }
  } else {
    for (int c = threadIdx.x; c < width; c += blockDim.x) to[c] = narrow<Y>(widen(from[c]) * factor * gain_of(c));
  }
}

// One block a row: the mean, then the mean of squared differences, so that nothing cancels.
template <class X, class Y>
__device__ void layernorm(const X* x, const void* weight, int weight_type, const void* bias, int bias_type, Y* y,
                          int width, int runs, index_t pitch, int turns, float eps, float offset) {
  cuda::griddepcontrol_launch_and_wait();
  const index_t row = blockIdx.x, at = (row % turns) * width, start = row_start(row, width, runs, pitch);
  const X* from = x + start;
  Y* to = y + start;
  float sum = 0;
  for (int c = threadIdx.x; c < width; c += blockDim.x) sum += widen(from[c]);
  const float mean = block_sum(sum) / static_cast<float>(width);
  float square = 0;
  for (int c = threadIdx.x; c < width; c += blockDim.x) {
    const float d = widen(from[c]) - mean;
    square = __fmaf_rn(d, d, square);
  }
  const float factor = 1.0f / sqrtf(block_sum(square) / static_cast<float>(width) + eps);
  for (int c = threadIdx.x; c < width; c += blockDim.x) {
    float v = (widen(from[c]) - mean) * factor;
    if (weight) v *= load_any(weight, weight_type, at + c) + offset;
    if (bias) v += load_any(bias, bias_type, at + c);
    to[c] = narrow<Y>(v);
  }
}

// One block a token; a thread owns whole pairs. back: the turn the other way.
template <class T>
__device__ void rope(T* x, const float* cosines, const float* sines, const int* positions, int heads, int head_dim,
                     index_t pitch, int rotary, int halves, index_t places, int back, unsigned* fault) {
  const index_t t = blockIdx.x;
  const int position = positions[t], half = rotary / 2;
  if (position < 0 || position >= places) {
    if (threadIdx.x == 0) *fault = 1;
    return;
  }
  const float *c = cosines + static_cast<index_t>(position) * half, *s = sines + static_cast<index_t>(position) * half;
  for (int i = threadIdx.x; i < heads * half; i += blockDim.x) {
    const int head = i / half, p = i % half;
    T* v = x + t * pitch + head * head_dim;
    T &first = v[halves ? p : 2 * p], &second = v[halves ? p + half : 2 * p + 1];
    const float a = widen(first), b = widen(second);
    const float sine = back ? -s[p] : s[p];
    first = narrow<T>(a * c[p] - b * sine);
    second = narrow<T>(b * c[p] + a * sine);
  }
}

}  // namespace

#define LPQ_NORM(x_type, x_name, y_type, y_name)                                                                   \
  extern "C" __global__ void lpq_rmsnorm_##x_name##_##y_name(const x_type* x, const void* weight, int weight_type, \
                                                             y_type* y, index_t rows, int width, int runs,         \
                                                             index_t pitch, float eps, float offset, int vec) {    \
    rmsnorm(x, weight, weight_type, y, rows, width, runs, pitch, eps, offset, vec);                                \
  }
LPQ_NORM(float, f32, float, f32)
LPQ_NORM(float, f32, f16, f16)
LPQ_NORM(float, f32, bf16, bf16)
LPQ_NORM(f16, f16, f16, f16)
LPQ_NORM(bf16, bf16, bf16, bf16)

#define LPQ_LAYERNORM(x_type, x_name, y_type, y_name)                                                              \
  extern "C" __global__ void lpq_layernorm_##x_name##_##y_name(                                                    \
      const x_type* x, const void* weight, int weight_type, const void* bias, int bias_type, y_type* y, int width, \
      int runs, index_t pitch, int turns, float eps, float offset) {                                               \
    layernorm(x, weight, weight_type, bias, bias_type, y, width, runs, pitch, turns, eps, offset);                 \
  }
LPQ_LAYERNORM(float, f32, float, f32)
LPQ_LAYERNORM(float, f32, f16, f16)
LPQ_LAYERNORM(float, f32, bf16, bf16)
LPQ_LAYERNORM(f16, f16, f16, f16)
LPQ_LAYERNORM(bf16, bf16, bf16, bf16)

#define LPQ_ROPE(type, name)                                                                                          \
  extern "C" __global__ void lpq_rope_##name(type* x, const float* cosines, const float* sines, const int* positions, \
                                             int heads, int head_dim, index_t pitch, int rotary, int halves,          \
                                             index_t places, int back, unsigned* fault) {                             \
    rope(x, cosines, sines, positions, heads, head_dim, pitch, rotary, halves, places, back, fault);                  \
  }
LPQ_EACH_TYPE(LPQ_ROPE)

// nll[t] = log sum exp(row - most) - (row[target] - most), in f64; one block a token.
extern "C" __global__ void lpq_nll(const float* logits, const int* targets, double* nll, int vocabulary,
                                   unsigned* fault) {
  __shared__ float most_of[32];
  __shared__ double sum_of[32];
  const index_t t = blockIdx.x;
  const int target = targets[t], warps = blockDim.x / 32, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (target < 0 || target >= vocabulary) {
    if (threadIdx.x == 0) {
      nll[t] = 0;
      if (target != -1) *fault = 1;
    }
    return;
  }
  const float* row = logits + t * vocabulary;
  float most = -INFINITY;
  for (int i = threadIdx.x; i < vocabulary; i += blockDim.x) most = fmaxf(most, row[i]);
  most = warp_max(most);
  if (lane == 0) most_of[warp] = most;
  __syncthreads();
  for (int i = 0; i < warps; ++i) most = fmaxf(most, most_of[i]);
  double sum = 0;
  for (int i = threadIdx.x; i < vocabulary; i += blockDim.x) sum += exp(static_cast<double>(row[i]) - most);
  sum = warp_sum(sum);
  if (lane == 0) sum_of[warp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  sum = 0;
  for (int i = 0; i < warps; ++i) sum += sum_of[i];
  nll[t] = log(sum) - (static_cast<double>(row[target]) - most);
}
