// The loops behind vector.h, compiled once an instruction set and vectorised by the compiler. Static, as in
// cpu/linalg/kernels_common.h.
#pragma once
#include <cstring>

#include "cpu/math.h"
#include "cpu/nn/vector.h"
#include "lpq/half.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace lpq::nn {
namespace {

constexpr int kSumLanes = 16;

template <class T>
inline T total(T* lanes) {
  for (int width = kSumLanes / 2; width > 0; width /= 2)
    for (int v = 0; v < width; ++v) lanes[v] += lanes[v + width];
  return lanes[0];
}

// Calls step(i, lane) for all i < n, lanes of 16 in an inner loop of constant length.
template <class Step>
inline void lanes_of(int64_t n, Step step) {
  int64_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes)
    for (int v = 0; v < kSumLanes; ++v) step(i + v, v);
  for (int v = 0; i < n; ++i, ++v) step(i, v);
}

void rmsnorm(const float* x, const float* gain, float* y, int64_t n, double eps) {
  double sum[kSumLanes] = {};
  lanes_of(n, [&](int64_t i, int v) { sum[v] += static_cast<double>(x[i]) * static_cast<double>(x[i]); });
  const float inverse = static_cast<float>(1.0 / std::sqrt(total(sum) / static_cast<double>(n) + eps));
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * inverse * gain[i];
}

void layernorm(const float* x, const float* gain, const float* bias, float* y, int64_t n, double eps) {
  double sum[kSumLanes] = {};
  lanes_of(n, [&](int64_t i, int v) { sum[v] += static_cast<double>(x[i]); });
  const double mean = total(sum) / static_cast<double>(n);
  double square[kSumLanes] = {};
  lanes_of(n, [&](int64_t i, int v) {
    const double d = static_cast<double>(x[i]) - mean;
    square[v] += d * d;
  });
  const double inverse = 1.0 / std::sqrt(total(square) / static_cast<double>(n) + eps);
  for (int64_t i = 0; i < n; ++i)
    y[i] = static_cast<float>((static_cast<double>(x[i]) - mean) * inverse) * gain[i] + bias[i];
}

struct Silu {
  static inline float of(float x) { return x / (1.0f + exp_f32(-x)); }
  static inline float slope(float x) {
    const float s = 1.0f / (1.0f + exp_f32(-x));
    return s * (1.0f + x * (1.0f - s));
  }
};
struct GeluTanh {  // 0.5 x (1 + tanh u) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3)
  static inline float of(float x) {
    const float twice = 1.5957691216057308f * std::fma(0.044715f * x * x, x, x);
    return x / (1.0f + exp_f32(-twice));
  }
  static inline float slope(float x) {
    const float twice = 1.5957691216057308f * std::fma(0.044715f * x * x, x, x);
    const float s = 1.0f / (1.0f + exp_f32(-twice));
    return s + x * s * (1.0f - s) * 1.5957691216057308f * std::fma(0.134145f * x, x, 1.0f);
  }
};
struct Relu {
  static inline float of(float x) { return x > 0.0f ? x : 0.0f; }
  static inline float slope(float x) { return x > 0.0f ? 1.0f : 0.0f; }
};
struct Relu2 {
  static inline float of(float x) { return x > 0.0f ? x * x : 0.0f; }
  static inline float slope(float x) { return x > 0.0f ? 2.0f * x : 0.0f; }
};
struct QuickGelu {
  static inline float of(float x) { return x / (1.0f + exp_f32(-1.702f * x)); }
  static inline float slope(float x) {
    const float s = 1.0f / (1.0f + exp_f32(-1.702f * x));
    return s * (1.0f + 1.702f * x * (1.0f - s));
  }
};
struct Sigmoid {
  static inline float of(float x) { return 1.0f / (1.0f + exp_f32(-x)); }
  static inline float slope(float x) {
    const float s = 1.0f / (1.0f + exp_f32(-x));
    return s * (1.0f - s);
  }
};

template <class Body>
inline void with_act(Act act, Body body) {
  switch (act) {
    case Act::silu: return body(Silu{});
    case Act::gelu_tanh: return body(GeluTanh{});
    case Act::relu: return body(Relu{});
    case Act::relu2: return body(Relu2{});
    case Act::quick_gelu: return body(QuickGelu{});
    case Act::sigmoid: return body(Sigmoid{});
  }
}

void activate(Act act, const float* x, float* y, int64_t n) {
  with_act(act, [&](auto f) {
    for (int64_t i = 0; i < n; ++i) y[i] = f.of(x[i]);
  });
}

void gated(Act act, const float* gate, const float* up, float* y, int64_t n) {
  with_act(act, [&](auto f) {
    for (int64_t i = 0; i < n; ++i) y[i] = f.of(gate[i]) * up[i];
  });
}

void rmsnorm_backward(const float* x, const float* gain, const float* dy, float* dx, int64_t n, double eps, bool add) {
  double square[kSumLanes] = {}, product[kSumLanes] = {};
  lanes_of(n, [&](int64_t i, int v) {
    square[v] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    product[v] += static_cast<double>(x[i]) * static_cast<double>(gain[i] * dy[i]);
  });
  const double count = static_cast<double>(n), inverse = 1.0 / std::sqrt(total(square) / count + eps);
  const float scale = static_cast<float>(inverse);
  const float along = static_cast<float>(total(product) * inverse * inverse * inverse / count);
  for (int64_t i = 0; i < n; ++i) {
    const float made = gain[i] * dy[i] * scale - x[i] * along;
    dx[i] = add ? dx[i] + made : made;
  }
}

void layernorm_backward(const float* x, const float* gain, const float* dy, float* dx, int64_t n, double eps,
                        bool add) {
  const double count = static_cast<double>(n);
  double sum[kSumLanes] = {};
  lanes_of(n, [&](int64_t i, int v) { sum[v] += static_cast<double>(x[i]); });
  const double mean = total(sum) / count;
  double square[kSumLanes] = {}, level[kSumLanes] = {}, product[kSumLanes] = {};
  lanes_of(n, [&](int64_t i, int v) {
    const double d = static_cast<double>(x[i]) - mean, g = static_cast<double>(gain[i] * dy[i]);
    square[v] += d * d;
    level[v] += g;
    product[v] += d * g;
  });
  const double inverse = 1.0 / std::sqrt(total(square) / count + eps), all = total(level) / count;
  const double along = total(product) * inverse * inverse / count;
  for (int64_t i = 0; i < n; ++i) {
    const double d = static_cast<double>(x[i]) - mean, g = static_cast<double>(gain[i] * dy[i]);
    const float made = static_cast<float>((g - all - d * along) * inverse);
    dx[i] = add ? dx[i] + made : made;
  }
}

void activate_backward(Act act, const float* x, const float* dy, float* dx, int64_t n) {
  with_act(act, [&](auto f) {
    for (int64_t i = 0; i < n; ++i) dx[i] = f.slope(x[i]) * dy[i];
  });
}

void gated_backward(Act act, const float* gate, const float* up, const float* dy, float* dgate, float* dup, int64_t n) {
  with_act(act, [&](auto f) {
    for (int64_t i = 0; i < n; ++i) {
      const float g = gate[i], u = up[i], d = dy[i];
      dgate[i] = f.slope(g) * u * d;
      dup[i] = f.of(g) * d;
    }
  });
}

void softmax_backward(float* p, float* dp, float shift, float more, int64_t n) {
  float sum[kSumLanes] = {};
  double product[kSumLanes] = {};
  lanes_of(n, [&](int64_t i, int v) {
    p[i] = exp_f32(p[i] - shift);
    sum[v] += p[i];
    product[v] += static_cast<double>(p[i] * dp[i]);
  });
  const float inverse = 1.0f / (total(sum) + more);
  const float mean = static_cast<float>(total(product) * static_cast<double>(inverse));
  for (int64_t i = 0; i < n; ++i) {
    p[i] *= inverse;
    dp[i] = p[i] * (dp[i] - mean);
  }
}

// tanh u by its odd Taylor series below 1/4 (the next term is 2e-9 of it), else 1 - 2 / (1 + e^2u), where that loses at
// most two bits.
void soft_cap(const float* x, float cap, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float u = x[i] / cap, a = u < 0.0f ? -u : u, s = u * u;
    float p = 62.0f / 2835;
    p = std::fma(p, s, -17.0f / 315);
    p = std::fma(p, s, 2.0f / 15);
    p = std::fma(p, s, -1.0f / 3);
    const float near = std::fma(p * s, u, u);
    const float far = 1.0f - 2.0f / (1.0f + exp_f32(2.0f * a));
    y[i] = cap * (a < 0.25f ? near : u < 0.0f ? -far : far);
  }
}

float maximum(const float* x, int64_t n) {
  float most[kSumLanes];
  for (int v = 0; v < kSumLanes; ++v) most[v] = -__builtin_inff();
  lanes_of(n, [&](int64_t i, int v) { most[v] = x[i] > most[v] ? x[i] : most[v]; });
  float result = most[0];
  for (int v = 1; v < kSumLanes; ++v) result = most[v] > result ? most[v] : result;
  return result;
}

float exponentials(const float* x, float shift, float* y, int64_t n) {
  float sum[kSumLanes] = {};
  lanes_of(n, [&](int64_t i, int v) {
    const float e = exp_f32(x[i] - shift);
    y[i] = e;
    sum[v] += e;
  });
  return total(sum);
}

// The sums of exp(x - shift), and of exp(z - shift_z) (z - y) in f64, of up to kSumLanes elements.
struct DivergenceSums {
  float p[kSumLanes] = {}, q[kSumLanes] = {};
  double inner[kSumLanes] = {};

  inline void step(const float* y, const float* z, float shift_y, float shift_z, float* to_p, float* to_q, int count) {
    float e[kSumLanes], f[kSumLanes];
    double d[kSumLanes];
    for (int v = 0; v < kSumLanes; ++v) {
      const bool there = v < count;
      const float a = there ? y[v] : shift_y, b = there ? z[v] : shift_z;
      e[v] = exp_f32(b - shift_z), f[v] = exp_f32(a - shift_y);
      d[v] = there ? static_cast<double>(e[v]) * (static_cast<double>(b) - static_cast<double>(a)) : 0.0;
    }
    for (int v = 0; v < kSumLanes; ++v) inner[v] += d[v];
    for (int v = 0; v < count; ++v) {
      p[v] += e[v], q[v] += f[v];
      to_p[v] = e[v], to_q[v] = f[v];
    }
  }
};

double divergence(const float* y, const float* z, float* p, float* q, int64_t n, double factor) {
  const float most_y = maximum(y, n), most_z = maximum(z, n);
  DivergenceSums sums;
  int64_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes) sums.step(y + i, z + i, most_y, most_z, p + i, q + i, kSumLanes);
  if (i < n) sums.step(y + i, z + i, most_y, most_z, p + i, q + i, static_cast<int>(n - i));
  const double sum_p = static_cast<double>(total(sums.p)), sum_q = static_cast<double>(total(sums.q));
  const float to_q = static_cast<float>(factor / sum_q), to_p = static_cast<float>(factor / sum_p);
  for (i = 0; i < n; ++i) q[i] = q[i] * to_q - p[i] * to_p;
  // KL = sum p (log p - log q), of which the logarithms of both sums and the maxima are the same for all elements.
  return total(sums.inner) / sum_p - static_cast<double>(most_z) + static_cast<double>(most_y) +
         std::log(sum_q / sum_p);
}

double sum_exp(const float* x, double shift, int64_t n) {
  double sum[kSumLanes] = {};
  lanes_of(n, [&](int64_t i, int v) { sum[v] += exp_f64(static_cast<double>(x[i]) - shift); });
  return total(sum);
}

void scale(const float* a, float factor, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] * factor;
}

void add_scaled(const float* a, const float* b, float factor, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i] * factor;
}

void rotate_half(float* lower, float* upper, const float* cos, const float* sin, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float a = lower[i], b = upper[i];
    lower[i] = a * cos[i] - b * sin[i];
    upper[i] = b * cos[i] + a * sin[i];
  }
}

void widen_f16(const uint16_t* x, float* y, int64_t n) {
  int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
#endif
  for (; i < n; ++i) y[i] = f16_to_f32(x[i]);
}

void narrow_f16(const float* x, uint16_t* y, int64_t n) {
  int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; i < n; ++i) y[i] = f32_to_f16(x[i]);
}

void widen_bf16(const uint16_t* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = bf16_to_f32(x[i]);
}

void narrow_bf16(const float* x, uint16_t* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = f32_to_bf16(x[i]);
}

void delta_token(float* s, int64_t rows, const float* g, int64_t g_step, const float* k, const float* q, const float* v,
                 float beta, float* y) {
  float read[kStateColumns] = {}, delta[kStateColumns], made[kStateColumns] = {};
  for (int64_t r = 0; r < rows; ++r) {
    float* row = s + r * kStateColumns;
    const float decay = g[r * g_step], key = k[r];
    for (int c = 0; c < kStateColumns; ++c) {
      row[c] *= decay;
      read[c] = std::fma(key, row[c], read[c]);
    }
  }
  for (int c = 0; c < kStateColumns; ++c) delta[c] = beta * (v[c] - read[c]);
  for (int64_t r = 0; r < rows; ++r) {
    float* row = s + r * kStateColumns;
    const float key = k[r], query = q[r];
    for (int c = 0; c < kStateColumns; ++c) {
      row[c] = std::fma(key, delta[c], row[c]);
      made[c] = std::fma(query, row[c], made[c]);
    }
  }
  for (int c = 0; c < kStateColumns; ++c) y[c] = made[c];
}

void decay_token(float* s, int64_t rows, float decay, const float* b, const float* c, const float* x, float* y) {
  float made[kStateColumns] = {};
  for (int64_t r = 0; r < rows; ++r) {
    float* row = s + r * kStateColumns;
    const float in = b[r], out = c[r];
    for (int i = 0; i < kStateColumns; ++i) {
      row[i] = std::fma(in, x[i], decay * row[i]);
      made[i] = std::fma(out, row[i], made[i]);
    }
  }
  for (int i = 0; i < kStateColumns; ++i) y[i] = made[i];
}

void scan_token(float* s, int64_t rows, const float* rate, const float* step, const float* b, const float* c,
                const float* x, float* y) {
  float made[kStateColumns] = {};
  for (int64_t r = 0; r < rows; ++r) {
    float* row = s + r * kStateColumns;
    const float in = b[r], out = c[r];
    for (int i = 0; i < kStateColumns; ++i) {
      row[i] = std::fma(in, x[i], exp_f32(rate[r * kStateColumns + i] * step[i]) * row[i]);
      made[i] = std::fma(out, row[i], made[i]);
    }
  }
  for (int i = 0; i < kStateColumns; ++i) y[i] = made[i];
}

float dot(const float* a, const float* b, int64_t n) {
  float sum[kSumLanes] = {};
  lanes_of(n, [&](int64_t i, int v) { sum[v] += a[i] * b[i]; });
  return total(sum);
}

// As many floats as a register holds.
#if defined(__AVX512F__)
constexpr int kWide = 16;
#elif defined(__AVX2__)
constexpr int kWide = 8;
#else
constexpr int kWide = 4;
#endif
typedef float Wide __attribute__((vector_size(kWide * sizeof(float))));
typedef float Four __attribute__((vector_size(4 * sizeof(float))));

template <class Vector>
inline Vector load(const float* x) {
  Vector made;
  std::memcpy(&made, x, sizeof made);
  return made;
}

// kRows dots at once, whose sums do not wait for each other.
template <int kRows>
inline void some_dots(const float* a, const float* const* rows, float* y, int64_t n) {
  constexpr int kParts = kSumLanes / kWide;
  Wide sum[kRows][kParts] = {};
  int64_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes)
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      const Wide factor = load<Wide>(a + i + p * kWide);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r][p] += factor * load<Wide>(rows[r] + i + p * kWide);
    }
  float lanes[kRows][kSumLanes];
  std::memcpy(lanes, sum, sizeof lanes);
  for (; i < n; ++i)
    for (int r = 0; r < kRows; ++r) lanes[r][i % kSumLanes] += a[i] * rows[r][i];
  for (int r = 0; r < kRows; ++r) {  // as total() adds them
    const float* lane = lanes[r];
    const Four four = (load<Four>(lane) + load<Four>(lane + 8)) + (load<Four>(lane + 4) + load<Four>(lane + 12));
    y[r] = (four[0] + four[2]) + (four[1] + four[3]);
  }
}

void dots(const float* a, const float* const* rows, int64_t count, float* y, int64_t n) {
  constexpr int kRows = kWide == 4 ? 2 : 4;
  int64_t r = 0;
  for (; r + kRows <= count; r += kRows) some_dots<kRows>(a, rows + r, y + r, n);
  for (; r < count; ++r) some_dots<1>(a, rows + r, y + r, n);
}

template <int kParts>
inline void some_columns_sum(const float* const* rows, const float* scales, int64_t count, float* y, int64_t first) {
  Wide sum[kParts] = {};
  for (int64_t r = 0; r < count; ++r) {
    const float *row = rows[r] + first, scale = scales[r];
#pragma GCC unroll 8
    for (int p = 0; p < kParts; ++p) sum[p] += load<Wide>(row + p * kWide) * scale;
  }
  std::memcpy(y + first, sum, sizeof sum);
}

void sum_rows(const float* const* rows, const float* scales, int64_t count, float* y, int64_t n) {
  int64_t first = 0;
  for (; first + 8 * kWide <= n; first += 8 * kWide) some_columns_sum<8>(rows, scales, count, y, first);
  for (; first + 4 * kWide <= n; first += 4 * kWide) some_columns_sum<4>(rows, scales, count, y, first);
  for (; first + kWide <= n; first += kWide) some_columns_sum<1>(rows, scales, count, y, first);
  for (; first < n; ++first) {
    float sum = 0;
    for (int64_t r = 0; r < count; ++r) sum += rows[r][first] * scales[r];
    y[first] = sum;
  }
}

constexpr VectorKernels kTable = {
    .rmsnorm = rmsnorm,
    .layernorm = layernorm,
    .activate = activate,
    .soft_cap = soft_cap,
    .gated = gated,
    .rmsnorm_backward = rmsnorm_backward,
    .layernorm_backward = layernorm_backward,
    .activate_backward = activate_backward,
    .gated_backward = gated_backward,
    .softmax_backward = softmax_backward,
    .maximum = maximum,
    .divergence = divergence,
    .exponentials = exponentials,
    .sum_exp = sum_exp,
    .scale = scale,
    .add_scaled = add_scaled,
    .rotate_half = rotate_half,
    .widen_f16 = widen_f16,
    .widen_bf16 = widen_bf16,
    .narrow_f16 = narrow_f16,
    .narrow_bf16 = narrow_bf16,
    .delta_token = delta_token,
    .decay_token = decay_token,
    .scan_token = scan_token,
    .dot = dot,
    .dots = dots,
    .sum_rows = sum_rows,
};

}  // namespace
}  // namespace lpq::nn
