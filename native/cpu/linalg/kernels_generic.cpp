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

template <class T>
T spin(int64_t n, T x) {
  T sum[32];
  for (int i = 0; i < 32; ++i) sum[i] = x * static_cast<T>(i);  // all different, lest chains be merged
  for (int64_t i = 0; i < n; ++i)
    for (T& s : sum) s = std::fma(x, x, s);
  for (int i = 1; i < 32; ++i) sum[0] += sum[i];
  return sum[0];
}

struct Doubles {
  using V = double;
  static constexpr int kWidth = 1, kRows = 1;
  static V load(const double* p) { return *p; }
  static void store(double* p, V a) { *p = a; }
  static V set(double x) { return x; }
  static V fma(V a, V b, V c) { return std::fma(a, b, c); }
  static V div(V a, V b) { return a / b; }
};

}  // namespace

const Kernels<float>& generic_f32() {
  static const Kernels<float> table = {4, 8, pack_scalar, tile<float>, spin<float>};
  return table;
}
const Kernels<double>& generic_f64() {
  static const Kernels<double> table = {4, 8, pack_scalar, tile<double>, spin<double>};
  return table;
}
const TriangularKernels& generic_triangular() { return kTriangular<Doubles>; }
AddScaledFn generic_add_scaled() { return add_scaled; }

}  // namespace lpq::linalg
