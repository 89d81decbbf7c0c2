// The inner kernels of the matrix products, one table an instruction set. Private to cpu/linalg.
//
// A panel is [kc][width]: `width` rows of op(A) (width mr) or columns of op(B) (width nr), k by k, padded with zeros.
// For products in bf16 it is [kc, rounded up to even][width] floats with the second k of each pair first, or, where an
// instruction multiplies pairs, [half of that][width] words of two bf16, the first k in the low half.
// Panels stand kPanelPad elements apart at least, so that packing may write whole vectors past the end of a panel.
#pragma once
#include <cstdint>

#include "cpu/isa.h"
#include "lpq/tensor.h"

namespace lpq::linalg {

constexpr int64_t kPanelPad = 16;

template <class T>
constexpr int64_t kBlockK = sizeof(T) == 4 ? 512 : 256;  // part of the arithmetic: see gemm.h

// Where one panel comes from: element (i, p) at data + i*step_i + p*step_p (elements); one of the steps is 1.
struct PackSource {
  const void* data;
  DType dtype;  // T itself; f16 and bf16 too when T is float
  int64_t step_i, step_p;
};

template <class T>
struct Kernels {
  int mr, nr;
  // dst[p*width + i] = source(i, p) * scale for i < count, 0 for count <= i < width.
  void (*pack)(T* dst, const PackSource& source, int count, int width, int64_t kc, T scale);
  // c[r][j] = (add ? c[r][j] : 0) + sum over p of a[p*mr + r] * b[p*nr + j], r < rows <= mr, j < cols <= nr.
  void (*tile)(int64_t kc, const T* a, const T* b, T* c, int64_t ldc, int rows, int cols, bool add);
  // n times mr*nr fma that touch registers only: what the machine could do at best. The result is to be looked at, so
  // that no compiler drops the work.
  T (*spin)(int64_t n, T x);
  // Elements of T that a panel of kc has for each of its rows or columns.
  int64_t (*depth)(int64_t kc);
};

// Small triangular work, n <= 64, over `lanes` right-hand sides at once.
struct TriangularKernels {
  int lanes;
  // Solves L x = b in place for x[n][lanes]; every lane is one right-hand side. Chain of fma in ascending row order.
  void (*solve_lower)(const double* l, int64_t ldl, int n, double* x);
  // Solves L^T x = b in place for x[n][lanes]; descending order.
  void (*solve_lower_transposed)(const double* l, int64_t ldl, int n, double* x);
  // In-place lower Cholesky factor of a[n][n], the strict upper part left alone; 0, or 1 + the failing column.
  int (*cholesky)(double* a, int64_t lda, int n);
};

// sink[j] += weight * tile[j] in f64 over a rows x cols tile with ldt elements between its rows.
using AddScaledFn = void (*)(const float* tile, int64_t ldt, int rows, int cols, double weight, double* sink,
                             int64_t lds);

struct KernelSet {
  Kernels<float> f32;
  Kernels<double> f64;
  Kernels<float> bf16;
  TriangularKernels triangular;
  AddScaledFn add_scaled;
};
const KernelSet& generic_set();
#if defined(LPQ_X86)
const KernelSet& avx2_set();
const KernelSet& avx512_set();
const Kernels<float>& avx512bf16_kernels();
#endif

inline const KernelSet& kernel_set() {
#if defined(LPQ_X86)
  if (active_isa() == Isa::avx512) return avx512_set();
  if (active_isa() == Isa::avx2) return avx2_set();
#endif
  return generic_set();
}
// Products of values rounded to bf16 (gemm.h): `bf16` of the set rounds them and multiplies in fp32, an instruction
// that multiplies pairs gives the same sums in half the time.
inline const Kernels<float>& bf16_kernels() {
#if defined(LPQ_X86)
  if (bf16_instructions()) return avx512bf16_kernels();
#endif
  return kernel_set().bf16;
}

template <class T>
const Kernels<T>& kernels() {
  if constexpr (sizeof(T) == 4) return kernel_set().f32;
  else return kernel_set().f64;
}

}  // namespace lpq::linalg
