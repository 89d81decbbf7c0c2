// The portable kernels, and the definition of what the others compute.
#include "cpu/linalg/kernels_common.h"

namespace lpq::linalg {
namespace {

template <class T>
void tile(int64_t kc, const T* a, const T* b, T* c, int64_t ldc, int rows, int cols, bool add) {
  constexpr int mr = 4, nr = 8;
  T sum[mr][nr] = {};
  for (int64_t p = 0; p < kc; ++p, a += mr, b += nr)
    for (int r = 0; r < mr; ++r)
      for (int j = 0; j < nr; ++j) sum[r][j] = std::fma(a[r], b[j], sum[r][j]);
  for (int r = 0; r < rows; ++r)
    for (int j = 0; j < cols; ++j) c[r * ldc + j] = add ? c[r * ldc + j] + sum[r][j] : sum[r][j];
}

template <class Number>
struct Scalar {
  using T = Number;
  using V = Number;
  static constexpr int kWidth = 1, kRows = 1;
  static V load(const T* p) { return *p; }
  static void store(T* p, V a) { *p = a; }
  static V set(T x) { return x; }
  static V fma(V a, V b, V c) { return std::fma(a, b, c); }
  static V add(V a, V b) { return a + b; }
  static V div(V a, V b) { return a / b; }
};

}  // namespace

const KernelSet& generic_set() {
  static const KernelSet set = {
      {4, 8, pack_scalar<float>, tile<float>, spin<Scalar<float>, 32>, depth_alone},
      {4, 8, pack_scalar<double>, tile<double>, spin<Scalar<double>, 32>, depth_alone},
      {4, 8, pack_bf16<pack_scalar<float>>, tile_bf16<tile<float>>, spin<Scalar<float>, 32>, depth_of_pairs},
      kTriangular<Scalar<double>>,
      add_scaled};
  return set;
}

}  // namespace lpq::linalg
