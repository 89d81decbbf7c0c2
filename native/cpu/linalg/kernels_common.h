// Loops that all three kernel files compile for their own instruction set. Everything is static: a function shared by
// name would be merged by the linker, and the merged copy might use instructions the CPU lacks.
#pragma once
#include <cmath>
#include <cstring>

#include "cpu/linalg/flush.h"
#include "cpu/linalg/kernels.h"
#include "lpq/half.h"

namespace lpq::linalg {
namespace {

// Elements of panels' sources, and their values.
struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};
[[maybe_unused]] inline float load1(float v) { return v; }
[[maybe_unused]] inline float load1(F16 v) { return f16_to_f32(v.bits); }
[[maybe_unused]] inline float load1(BF16 v) { return bf16_to_f32(v.bits); }
[[maybe_unused]] inline double load1(double v) { return v; }

// Calls body with the source's data as a pointer to its elements.
template <class Body>
void with_source(const PackSource& s, const Body& body) {
  if (s.dtype == DType::f64) body(static_cast<const double*>(s.data));
  else if (s.dtype == DType::f32) body(static_cast<const float*>(s.data));
  else if (s.dtype == DType::f16) body(static_cast<const F16*>(s.data));
  else body(static_cast<const BF16*>(s.data));
}

template <class T>
[[maybe_unused]] void pack_scalar(T* dst, const PackSource& s, int count, int width, int64_t kc, T scale) {
  const auto pack = [&](const auto* src, int64_t step_i, int64_t step_p) {
    for (int64_t p = 0; p < kc; ++p) {
      for (int i = 0; i < count; ++i) dst[p * width + i] = static_cast<T>(load1(src[i * step_i + p * step_p])) * scale;
      for (int i = count; i < width; ++i) dst[p * width + i] = 0;
    }
  };
  with_source(s, [&](const auto* src) {
    if (s.step_i == 1) pack(src, 1, s.step_p);
    else pack(src, s.step_i, 1);
  });
}

[[maybe_unused]] void add_scaled(const float* tile, int64_t ldt, int rows, int cols, double weight, double* sink,
                                 int64_t lds) {
  for (int r = 0; r < rows; ++r)
    for (int j = 0; j < cols; ++j) sink[r * lds + j] += weight * static_cast<double>(tile[r * ldt + j]);
}

[[maybe_unused]] int64_t depth_alone(int64_t kc) { return kc; }
[[maybe_unused]] int64_t depth_of_pairs(int64_t kc) { return (kc + 1) / 2 * 2; }

// To the nearest bf16, ties to even; what is below the least normal number becomes 0, as instructions have it.
[[maybe_unused]] inline float to_bf16(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, 4);
  if ((bits & 0x7f800000u) == 0) bits &= 0x80000000u;
  else if ((bits & 0x7fffffffu) > 0x7f800000u) bits |= 0x00400000u;
  else bits += 0x7fffu + (bits >> 16 & 1u);
  bits &= 0xffff0000u;
  std::memcpy(&v, &bits, 4);
  return v;
}

// The panel of products in bf16, as floats: `pack` of the same instruction set fills it, then values are rounded and
// the two k of each pair change places, so that a chain of fma takes them in the order of the instruction that
// multiplies pairs (VDPBF16PS: the second first). An odd kc is padded with zeros.
template <void (*pack)(float*, const PackSource&, int, int, int64_t, float)>
[[maybe_unused]] void pack_bf16(float* dst, const PackSource& source, int count, int width, int64_t kc, float scale) {
  pack(dst, source, count, width, kc, scale);
  if (kc % 2 != 0)
    for (int i = 0; i < width; ++i) dst[kc * width + i] = 0;
  for (int64_t p = 0; p < kc; p += 2)
    for (int i = 0; i < width; ++i) {
      const float first = to_bf16(dst[p * width + i]);
      dst[p * width + i] = to_bf16(dst[(p + 1) * width + i]);
      dst[(p + 1) * width + i] = first;
    }
}

// Sums of products in bf16 with numbers below the least normal one taken as 0, as the instruction does.
template <void (*tile)(int64_t, const float*, const float*, float*, int64_t, int, int, bool)>
[[maybe_unused]] void tile_bf16(int64_t kc, const float* a, const float* b, float* c, int64_t ldc, int rows, int cols,
                                bool add) {
  const FlushToZero flush;
  tile(depth_of_pairs(kc), a, b, c, ldc, rows, cols, add);
}

constexpr int kLanes = 16;

// Vec is the kernel file's vector of T: { V load(p); void store(p, V); V set(x); V fma(a, b, c); V add(a, b) }, of
// doubles also V div(a, b), with kWidth elements in a V and, of doubles, kRows rows worked on at once.
//
// Chains of fma that touch registers only.
template <class Vec, int chains>
[[maybe_unused]] typename Vec::T spin(int64_t n, typename Vec::T x) {
  using V = typename Vec::V;
  V sum[chains];
#pragma GCC unroll 28
  for (int s = 0; s < chains; ++s)
    sum[s] = Vec::set(x * static_cast<typename Vec::T>(s));  // all different, lest chains be merged
  const V a = Vec::set(x);
  for (int64_t i = 0; i < n; ++i)
#pragma GCC unroll 28
    for (int s = 0; s < chains; ++s) sum[s] = Vec::fma(a, a, sum[s]);
#pragma GCC unroll 28
  for (int s = 1; s < chains; ++s) sum[0] = Vec::add(sum[0], sum[s]);
  typename Vec::T out[Vec::kWidth];
  Vec::store(out, sum[0]);
  return out[0];
}

// Substitution, forward or (turned) backward: row i has the products of all rows solved before it taken off, in the
// order in which they were solved. kRows rows share the loads of those; among themselves they are solved one by one.
template <class Vec, bool turned>
[[maybe_unused]] void solve(const double* l, int64_t ldl, int n, double* x) {
  using V = typename Vec::V;
  constexpr int kVectors = kLanes / Vec::kWidth, kRows = Vec::kRows;
  const auto row = [&](int i) { return turned ? n - 1 - i : i; };  // the i-th to be solved
  const auto factor = [&](int i, int p) { return turned ? l[row(p) * ldl + row(i)] : l[i * ldl + p]; };
  int i = 0;
  for (; i + kRows <= n; i += kRows) {
    V sum[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Vec::load(x + row(i + r) * kLanes + v * Vec::kWidth);
    for (int p = 0; p < i; ++p) {
      const double* known = x + row(p) * kLanes;
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const V f = Vec::set(-factor(i + r, p));
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) sum[r][v] = Vec::fma(f, Vec::load(known + v * Vec::kWidth), sum[r][v]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < r; ++p) {
        const V f = Vec::set(-factor(i + r, i + p));
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) sum[r][v] = Vec::fma(f, sum[p][v], sum[r][v]);
      }
      const V pivot = Vec::set(factor(i + r, i + r));
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = Vec::div(sum[r][v], pivot);
        Vec::store(x + row(i + r) * kLanes + v * Vec::kWidth, sum[r][v]);
      }
    }
  }
  for (; i < n; ++i)
    for (int v = 0; v < kLanes; v += Vec::kWidth) {
      V sum = Vec::load(x + row(i) * kLanes + v);
      for (int p = 0; p < i; ++p) sum = Vec::fma(Vec::set(-factor(i, p)), Vec::load(x + row(p) * kLanes + v), sum);
      Vec::store(x + row(i) * kLanes + v, Vec::div(sum, Vec::set(factor(i, i))));
    }
}

// Right-looking: after column j is scaled, every later row takes its rank-1 part off, which runs along rows.
[[maybe_unused]] int cholesky_small(double* a, int64_t lda, int n) {
  double column[64];
  for (int j = 0; j < n; ++j) {
    const double pivot = a[j * lda + j];
    if (!(pivot > 0) || pivot > 1.7976931348623157e308) return 1 + j;
    const double root = std::sqrt(pivot);
    a[j * lda + j] = root;
    for (int i = j + 1; i < n; ++i) column[i] = a[i * lda + j] = a[i * lda + j] / root;
    for (int i = j + 1; i < n; ++i) {
      double* row = a + i * lda;
      const double factor = -column[i];
      for (int q = j + 1; q <= i; ++q) row[q] = std::fma(factor, column[q], row[q]);
    }
  }
  return 0;
}

template <class Vec>
[[maybe_unused]] constexpr TriangularKernels kTriangular = {kLanes, solve<Vec, false>, solve<Vec, true>,
                                                            cholesky_small};

}  // namespace
}  // namespace lpq::linalg
