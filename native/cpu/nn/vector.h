// Row kernels of the decoder's operations, one table an instruction set; all give the same bytes. Sums run in kSumLanes
// interleaved partial sums (element i in partial i mod kSumLanes), added pairwise at the end.
#pragma once
#include <cstdint>

#include "cpu/isa.h"

namespace lpq::nn {

enum class Act { silu, gelu_tanh, relu, relu2, quick_gelu, sigmoid };

// Columns of a recurrent state that are computed at once: of 128 rows they fill half of an L1 cache.
constexpr int kStateColumns = 32;

struct VectorKernels {
  // y = x / sqrt(mean(x^2) + eps) * gain; the mean in f64. y may be x.
  void (*rmsnorm)(const float* x, const float* gain, float* y, int64_t n, double eps);
  // y = (x - mean) / sqrt(var + eps) * gain + bias; mean and variance in f64, the variance of the differences. y may be
  // x.
  void (*layernorm)(const float* x, const float* gain, const float* bias, float* y, int64_t n, double eps);
  // y = act(x); y may be x.
  void (*activate)(Act act, const float* x, float* y, int64_t n);
  // y = cap * tanh(x / cap); y may be x.
  void (*soft_cap)(const float* x, float cap, float* y, int64_t n);
  // y = act(gate) * up; y may be either.
  void (*gated)(Act act, const float* gate, const float* up, float* y, int64_t n);
  // Of rmsnorm: dx = (add ? dx : 0) + its gradient for dy; sums in f64. dx may be dy.
  void (*rmsnorm_backward)(const float* x, const float* gain, const float* dy, float* dx, int64_t n, double eps,
                           bool add);
  // Of layernorm, likewise; the variance of the differences.
  void (*layernorm_backward)(const float* x, const float* gain, const float* dy, float* dx, int64_t n, double eps,
                             bool add);
  // dx = act'(x) * dy; dx may be dy.
  void (*activate_backward)(Act act, const float* x, const float* dy, float* dx, int64_t n);
  // dgate = act'(gate) * up * dy, dup = act(gate) * dy; either may be dy.
  void (*gated_backward)(Act act, const float* gate, const float* up, const float* dy, float* dgate, float* dup,
                         int64_t n);
  // In place: p = exp(p - shift), then dp = p * (dp - sum p dp / sum p) and p /= sum p, sums in f32 and f64; a row of
  // a softmax and its gradient. `more` is added to the sum of p.
  void (*softmax_backward)(float* p, float* dp, float shift, float more, int64_t n);
  float (*maximum)(const float* x, int64_t n);
  // Returns KL(softmax(z) || softmax(y)) and makes q = factor (softmax(y) - softmax(z)); q may be y, p is room for n.
  double (*divergence)(const float* y, const float* z, float* p, float* q, int64_t n, double factor);
  // y = exp(x - shift) in place or not; returns the sum.
  float (*exponentials)(const float* x, float shift, float* y, int64_t n);
  // The sum of exp(x - shift), x - shift <= 0, in f64.
  double (*sum_exp)(const float* x, double shift, int64_t n);
  // y = a * factor (+ b * scale).
  void (*scale)(const float* a, float factor, float* y, int64_t n);
  void (*add_scaled)(const float* a, const float* b, float scale, float* y, int64_t n);
  void (*rotate_half)(float* lower, float* upper, const float* cos, const float* sin, int64_t n);
  void (*widen_f16)(const uint16_t* x, float* y, int64_t n);
  void (*widen_bf16)(const uint16_t* x, float* y, int64_t n);
  void (*narrow_f16)(const float* x, uint16_t* y, int64_t n);
  void (*narrow_bf16)(const float* x, uint16_t* y, int64_t n);
  // A token of the gated delta rule for kStateColumns columns of a state s [rows, kStateColumns]
  // (native/ops/recurrent.h); row r decays by g[r * g_step].
  void (*delta_token)(float* s, int64_t rows, const float* g, int64_t g_step, const float* k, const float* q,
                      const float* v, float beta, float* y);
  // A token of a selective scan (native/ops/recurrent.h) for kStateColumns columns of a state s [rows, kStateColumns]:
  // s = decay s + b x, y = c s. decay_token has one decay, scan_token exp(rate step), rate as s, step a column.
  void (*decay_token)(float* s, int64_t rows, float decay, const float* b, const float* c, const float* x, float* y);
  void (*scan_token)(float* s, int64_t rows, const float* rate, const float* step, const float* b, const float* c,
                     const float* x, float* y);
  float (*dot)(const float* a, const float* b, int64_t n);
  // y[r] = dot(a, rows[r]) of `count` rows.
  void (*dots)(const float* a, const float* const* rows, int64_t count, float* y, int64_t n);
  // y = 0, then add_scaled(y, rows[r], scales[r]) row by row.
  void (*sum_rows)(const float* const* rows, const float* scales, int64_t count, float* y, int64_t n);
};

const VectorKernels& generic_vector();
#if defined(LPQ_X86)
const VectorKernels& avx2_vector();
const VectorKernels& avx512_vector();
#endif

inline const VectorKernels& vector_kernels() {
#if defined(LPQ_X86)
  if (active_isa() == Isa::avx512) return avx512_vector();
  if (active_isa() == Isa::avx2) return avx2_vector();
#endif
  return generic_vector();
}

}  // namespace lpq::nn
