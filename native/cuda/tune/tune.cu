// Steps of trained rounding (ops/tune.h). Sums are f64, in a fixed order.
#include "cuda/nn/block_sum.cuh"
#include "cuda/quant/number.cuh"
#include "cuda/types.cuh"

using namespace lpq;
using namespace lpq::cuda;

// A step of targets against directions; a block a row.
extern "C" __global__ void __launch_bounds__(512)
    lpq_tune_aim(const float* p, const float* w, const float* scale, float* t, float* most, int k, int groups,
                 float rate, float leak) {
  const index_t row = blockIdx.x, first = row * k;
  double squares = 0, unit = 0;
  for (int i = threadIdx.x; i < k; i += blockDim.x)
    squares += static_cast<double>(p[first + i]) * static_cast<double>(p[first + i]);
  for (int g = threadIdx.x; g < groups; g += blockDim.x) unit += fabs(static_cast<double>(scale[row * groups + g]));
  squares = block_sum(squares), unit = block_sum(unit);
  const float peak = fmaxf(most[row], static_cast<float>(sqrt(squares / k)));
  const float step = peak == 0.0f ? 0.0f : rate * static_cast<float>(unit / groups) / peak;
  __syncthreads();  // all have read what is written now
  if (threadIdx.x == 0) most[row] = peak;
  for (int i = threadIdx.x; i < k; i += blockDim.x) {
    const float own = w[first + i];
    t[first + i] = own + leak * (t[first + i] - own) - step * p[first + i];
  }
}

// Scales as they are stored, times `unit`; zeros within [least, highest].
extern "C" __global__ void lpq_tune_grid(const float* s, const float* f, const float* z, const float* e,
                                         uint8_t* stored, int dtype, float* scale, float* zero, float unit, float least,
                                         float highest, index_t count) {
  const index_t step = static_cast<index_t>(gridDim.x) * blockDim.x;
  for (index_t i = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    float held = write_number(dtype, stored, i, __fdiv_rn(s[i] * f[i], unit));
    if (!isfinite(held) || held == 0.0f) held = write_number(dtype, stored, i, __fdiv_rn(s[i], unit));
    scale[i] = held * unit;
    zero[i] = e[i] == 0.0f ? z[i] : fminf(fmaxf(rintf(z[i] + e[i]), least), highest);
  }
}

// g += sum over a group of dw w / f; a warp a group.
extern "C" __global__ void lpq_tune_scale_gradient(const float* dw, const float* w, const float* f, float* g,
                                                   int length, index_t groups) {
  const index_t group = static_cast<index_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (group >= groups) return;
  double sum = 0;
  for (int i = threadIdx.x; i < length; i += 32)
    sum += static_cast<double>(dw[group * length + i]) * static_cast<double>(w[group * length + i]);
  sum = warp_sum(sum);
  if (threadIdx.x == 0) g[group] += static_cast<float>(sum / static_cast<double>(f[group]));
}

// g += gain times the sum over the rows of x dy: parts [pieces, width] of pieces of the rows, then their sum.
extern "C" __global__ void lpq_tune_gain_parts(const float* x, const float* dy, double* parts, int rows, int width,
                                               int piece) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x, begin = blockIdx.y * piece, end = min(begin + piece, rows);
  if (c >= width) return;
  double sum = 0;
  for (int row = begin; row < end; ++row) {
    const index_t at = static_cast<index_t>(row) * width + c;
    sum += static_cast<double>(x[at]) * static_cast<double>(dy[at]);
  }
  parts[static_cast<index_t>(blockIdx.y) * width + c] = sum;
}
extern "C" __global__ void lpq_tune_gain_sum(const double* parts, int pieces, const float* gain, float* g, int width) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= width) return;
  double sum = 0;
  for (int i = 0; i < pieces; ++i) sum += parts[static_cast<index_t>(i) * width + c];
  g[c] += static_cast<float>(sum * static_cast<double>(gain[c]));
}

// Adam (arXiv:1412.6980, algorithm 1); of_m and of_v: 1 / (1 - beta^step).
extern "C" __global__ void lpq_tune_adam(float* f, float* g, float* m, float* v, double rate, double beta1,
                                         double beta2, double eps, double of_m, double of_v, float least, float most,
                                         index_t count) {
  const index_t each = static_cast<index_t>(gridDim.x) * blockDim.x;
  for (index_t i = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += each) {
    const double slope = g[i];
    m[i] = static_cast<float>(beta1 * m[i] + (1 - beta1) * slope);
    v[i] = static_cast<float>(beta2 * v[i] + (1 - beta2) * slope * slope);
    const double step = rate * (m[i] * of_m) / (sqrt(v[i] * of_v) + eps);
    f[i] = fminf(fmaxf(static_cast<float>(f[i] - step), least), most);
    g[i] = 0;
  }
}

// dots[t] = x[t] y[t]; a block a row.
extern "C" __global__ void lpq_tune_row_dots(const float* x, const float* y, double* dots, int width) {
  const index_t first = static_cast<index_t>(blockIdx.x) * width;
  double sum = 0;
  for (int c = threadIdx.x; c < width; c += blockDim.x)
    sum += static_cast<double>(x[first + c]) * static_cast<double>(y[first + c]);
  sum = block_sum(sum);
  if (threadIdx.x == 0) dots[blockIdx.x] = sum;
}
