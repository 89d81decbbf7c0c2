// Several residual streams, and experts by roots (ops/hyper.h).
#include "cuda/types.cuh"

using namespace lpq;

namespace {

constexpr int kMostStreams = 8;

__device__ __forceinline__ double sigmoid(double x) { return 1 / (1 + exp(-x)); }

// Rows or columns of a matrix, divided by their sums.
__device__ void divide(double (*m)[kMostStreams], int n, bool rows, double eps) {
  for (int i = 0; i < n; ++i) {
    double sum = eps;
    for (int j = 0; j < n; ++j) sum += rows ? m[i][j] : m[j][i];
    for (int j = 0; j < n; ++j) (rows ? m[i][j] : m[j][i]) /= sum;
  }
}

}  // namespace

// A thread a token. post and mix: null where there is only pre.
extern "C" __global__ void lpq_hyper_weights(const float* weights, const void* base, int base_type, const void* scale,
                                             int scale_type, float* pre, float* post, float* mix, int n, int width,
                                             int iterations, double eps, int tokens) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= tokens) return;
  const float* w = weights + static_cast<index_t>(t) * width;
  const auto at = [&](int i, int part) {
    return static_cast<double>(w[i]) * static_cast<double>(load_any(scale, scale_type, part)) +
           static_cast<double>(load_any(base, base_type, i));
  };
  for (int i = 0; i < n; ++i) pre[t * n + i] = static_cast<float>(sigmoid(at(i, 0)) + eps);
  if (!post) return;
  for (int i = 0; i < n; ++i) post[t * n + i] = static_cast<float>(2 * sigmoid(at(n + i, 1)));
  double m[kMostStreams][kMostStreams];
  for (int i = 0; i < n; ++i) {
    double most = -INFINITY, sum = 0;
    for (int j = 0; j < n; ++j) m[i][j] = at(2 * n + i * n + j, 2), most = fmax(most, m[i][j]);
    for (int j = 0; j < n; ++j) m[i][j] = exp(m[i][j] - most), sum += m[i][j];
    for (int j = 0; j < n; ++j) m[i][j] = m[i][j] / sum + eps;
  }
  divide(m, n, false, eps);
  for (int i = 1; i < iterations; ++i) divide(m, n, true, eps), divide(m, n, false, eps);
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < n; ++j) mix[(static_cast<index_t>(t) * n + i) * n + j] = static_cast<float>(m[i][j]);
}

// y = sum_n pre_n x_n; count: of y.
extern "C" __global__ void lpq_hyper_collapse(const float* x, const float* pre, float* y, int n, int width,
                                              index_t count) {
  const index_t step = static_cast<index_t>(gridDim.x) * blockDim.x;
  for (index_t i = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const index_t t = i / width, c = i % width;
    float sum = 0;
    for (int j = 0; j < n; ++j) sum = __fmaf_rn(pre[t * n + j], x[(t * n + j) * width + c], sum);
    y[i] = sum;
  }
}

// y_n = post_n made + sum_m mix[m][n] x_m; count: of made.
extern "C" __global__ void lpq_hyper_expand(const float* x, const float* made, const float* post, const float* mix,
                                            float* y, int n, int width, index_t count) {
  const index_t step = static_cast<index_t>(gridDim.x) * blockDim.x;
  for (index_t i = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const index_t t = i / width, c = i % width;
    for (int j = 0; j < n; ++j) {
      float sum = post[t * n + j] * made[i];
      for (int m = 0; m < n; ++m) sum = __fmaf_rn(mix[(t * n + m) * n + j], x[(t * n + m) * width + c], sum);
      y[(t * n + j) * width + c] = sum;
    }
  }
}

#define LPQ_LIMITED_GATE(type, name)                                                                                  \
  extern "C" __global__ void lpq_limited_gate_##name(const type* gate, const type* up, type* y, float limit,          \
                                                     index_t count) {                                                 \
    const index_t step = static_cast<index_t>(gridDim.x) * blockDim.x;                                                \
    for (index_t i = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {             \
      const float a = widen(gate[i]), b = widen(up[i]);                                                               \
      const float g = a > limit ? limit : a, u = b > limit ? limit : b < -limit ? -limit : b; /* NaN comes through */ \
      y[i] = narrow<type>(g / (1.0f + expf(-g)) * u);                                                                 \
    }                                                                                                                 \
  }
LPQ_EACH_TYPE(LPQ_LIMITED_GATE)

// A warp a token, with 2 `experts` floats of shared memory each. bias and table may be null; wide: ids of 64 bits.
extern "C" __global__ void lpq_route_root(const float* logits, const void* bias, int bias_type, const int* ids,
                                          const void* table, int wide, index_t rows, int* indices, float* weights,
                                          index_t tokens, int experts, int k, float scale, unsigned* not_finite,
                                          unsigned* no_expert) {
  extern __shared__ float memory[];
  const index_t t = static_cast<index_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (t >= tokens) return;
  const int lane = threadIdx.x;
  float *share = memory + 2 * threadIdx.y * experts, *left = share + experts;
  bool bad = false;
  for (int e = lane; e < experts; e += 32) {
    const float x = logits[t * experts + e];
    share[e] = sqrtf(fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))));
    left[e] = share[e] + (bias ? load_any(bias, bias_type, e) : 0.0f);
    bad |= !isfinite(left[e]);
  }
  if (__any_sync(0xffffffffu, bad)) {
    if (lane == 0) *not_finite = 1;
    for (int j = lane; j < k; j += 32) indices[t * k + j] = j, weights[t * k + j] = 0;  // what follows stays inside
    return;
  }
  __syncwarp();
  index_t id = table ? ids[t] : 0;
  if (table && (id < 0 || id >= rows)) {
    if (lane == 0) *no_expert = 1;
    id = 0;
  }
  float sum = 1e-20f;
  for (int j = 0; j < k; ++j) {
    float best = -INFINITY;
    int at = experts;
    if (table) {
      const index_t named =
          wide ? static_cast<const long long*>(table)[id * k + j] : static_cast<const int*>(table)[id * k + j];
      at = named >= 0 && named < experts ? static_cast<int>(named) : 0;
      if (at != named && lane == 0) *no_expert = 1;
    } else {
      for (int e = lane; e < experts; e += 32)
        if (left[e] > best) best = left[e], at = e;
#pragma unroll
      for (int step = 16; step > 0; step >>= 1) {
        const float other = __shfl_xor_sync(0xffffffffu, best, step);
        const int other_at = __shfl_xor_sync(0xffffffffu, at, step);
        if (other > best || (other == best && other_at < at)) best = other, at = other_at;
      }
    }
    __syncwarp();  // all lanes have read what is left
    if (lane == 0) {
      left[at] = -INFINITY;
      indices[t * k + j] = at;
      weights[t * k + j] = share[at];
    }
    sum += share[at];
    __syncwarp();
  }
  for (int j = lane; j < k; j += 32) weights[t * k + j] = weights[t * k + j] / sum * scale;
}
