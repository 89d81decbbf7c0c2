// Gradients row by row (ops/backward.h), f32. A row is a block's, or of narrow ones a warp's (blockDim.y > 1).
#include "cuda/nn/block_sum.cuh"
#include "cuda/types.cuh"

using namespace lpq;

namespace {

struct Row {
  index_t at;
  bool by_warp;
  __device__ explicit Row(index_t rows) : by_warp(blockDim.y > 1) {
    at = by_warp ? static_cast<index_t>(blockIdx.x) * blockDim.y + threadIdx.y : blockIdx.x;
    if (at >= rows) at = -1;
  }
  __device__ float sum(float v) const { return by_warp ? warp_sum(v) : block_sum(v); }
};

}  // namespace

// y = x r g, r = 1 / sqrt(mean x^2 + eps): dx = r (g dy - x r^2 mean(g dy x)).
extern "C" __global__ void lpq_rmsnorm_backward(const float* x, const float* dy, const void* weight, int weight_type,
                                                float* dx, index_t rows, int width, float eps, float offset,
                                                int accumulate) {
  const Row row(rows);
  if (row.at < 0) return;
  const float *from = x + row.at * width, *d = dy + row.at * width;
  float* to = dx + row.at * width;
  const auto gain = [&](int c) { return weight ? load_any(weight, weight_type, c) + offset : 1.0f; };
  float squares = 0, products = 0;
  for (int c = threadIdx.x; c < width; c += blockDim.x) {
    squares = __fmaf_rn(from[c], from[c], squares);
    products = __fmaf_rn(gain(c) * d[c], from[c], products);
  }
  squares = row.sum(squares), products = row.sum(products);
  const float n = static_cast<float>(width), r = 1.0f / sqrtf(squares / n + eps), by = products / n * r * r;
  for (int c = threadIdx.x; c < width; c += blockDim.x) {
    const float made = r * __fmaf_rn(-by, from[c], gain(c) * d[c]);
    to[c] = accumulate ? to[c] + made : made;
  }
}

// With h = g dy and u = (x - mean) r: dx = r (h - mean h - u mean(h u)). Row t has row t mod turns of the weight.
extern "C" __global__ void lpq_layernorm_backward(const float* x, const float* dy, const void* weight, int weight_type,
                                                  float* dx, index_t rows, int width, int turns, float eps,
                                                  float offset, int accumulate) {
  const Row row(rows);
  if (row.at < 0) return;
  const float *from = x + row.at * width, *d = dy + row.at * width;
  float* to = dx + row.at * width;
  const index_t own = row.at % turns * width;
  const auto gain = [&](int c) { return weight ? load_any(weight, weight_type, own + c) + offset : 1.0f; };
  const float n = static_cast<float>(width);
  float sum = 0, square = 0, of_h = 0, of_u = 0;
  for (int c = threadIdx.x; c < width; c += blockDim.x) sum += from[c];
  const float mean = row.sum(sum) / n;
  for (int c = threadIdx.x; c < width; c += blockDim.x) {
    const float u = from[c] - mean, h = gain(c) * d[c];
    square = __fmaf_rn(u, u, square), of_h += h, of_u = __fmaf_rn(h, u, of_u);
  }
  const float r = 1.0f / sqrtf(row.sum(square) / n + eps);
  of_h = row.sum(of_h) / n, of_u = row.sum(of_u) / n * r * r;
  for (int c = threadIdx.x; c < width; c += blockDim.x) {
    const float made = r * __fmaf_rn(-of_u, from[c] - mean, gain(c) * d[c] - of_h);
    to[c] = accumulate ? to[c] + made : made;
  }
}

// dy = y - target, and its squares' sum.
extern "C" __global__ void lpq_output_error(const float* y, const float* target, float* dy, double* sums, int width) {
  const index_t first = static_cast<index_t>(blockIdx.x) * width;
  double sum = 0;
  for (int c = threadIdx.x; c < width; c += blockDim.x) {
    const float d = y[first + c] - target[first + c];
    dy[first + c] = d;
    sum += static_cast<double>(d) * static_cast<double>(d);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// KL(softmax(target) || softmax(logits)) of a row, and factor times its gradient.
extern "C" __global__ void __launch_bounds__(1024)
    lpq_divergence(const float* logits, const float* target, float* dlogits, double* sums, int vocabulary,
                   float factor) {
  __shared__ float most_of[2][32];
  const index_t first = static_cast<index_t>(blockIdx.x) * vocabulary;
  const float *l = logits + first, *w = target + first;
  float most = -INFINITY, wanted_most = -INFINITY;
  for (int i = threadIdx.x; i < vocabulary; i += blockDim.x)
    most = fmaxf(most, l[i]), wanted_most = fmaxf(wanted_most, w[i]);
  most = warp_max(most), wanted_most = warp_max(wanted_most);
  if (threadIdx.x % 32 == 0) most_of[0][threadIdx.x / 32] = most, most_of[1][threadIdx.x / 32] = wanted_most;
  __syncthreads();
  for (unsigned i = 0; i < blockDim.x / 32; ++i)
    most = fmaxf(most, most_of[0][i]), wanted_most = fmaxf(wanted_most, most_of[1][i]);
  double sum = 0, wanted_sum = 0;
  for (int i = threadIdx.x; i < vocabulary; i += blockDim.x)
    sum += static_cast<double>(expf(l[i] - most)), wanted_sum += static_cast<double>(expf(w[i] - wanted_most));
  sum = block_sum(sum), wanted_sum = block_sum(wanted_sum);
  const float all = static_cast<float>(sum), wanted_all = static_cast<float>(wanted_sum);
  const double apart = log(sum) - log(wanted_sum);
  double loss = 0;
  for (int i = threadIdx.x; i < vocabulary; i += blockDim.x) {
    const float a = l[i] - most, b = w[i] - wanted_most, q = expf(a) / all, p = expf(b) / wanted_all;
    if (p > 0) loss += static_cast<double>(p) * (static_cast<double>(b) - static_cast<double>(a) + apart);
    dlogits[first + i] = factor * (q - p);
  }
  loss = block_sum(loss);
  if (threadIdx.x == 0) sums[blockIdx.x] = loss;
}
