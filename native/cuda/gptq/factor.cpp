// gptq_factor (contract: native/cpu/gptq/factor.cpp), in f64 throughout: U is the inverse of a matrix whose condition
// number reaches K / damp, about 10^6, so f32 would leave it one or two correct digits in the worst direction.
//
// Only the inverse X = L^-1 is wanted. Recursively, for a matrix cut in two,
//     X11 = inverse of the upper left half;  L21 = A21 X11^T;  X22 = inverse of A22 - L21 L21^T;  X21 = -X22 (L21 X11),
// so all but the blocks of 128 on the diagonal are products, on f64 matrix units where the device has them. Products with a
// triangular operand go by panels, which leaves out most of its zeros. cuSOLVER's potrf and trtri took 3.6 times as long on
// an H200 (K = 14336: 185 ms instead of 52; bench/results).
#include <cmath>

#include "cuda/exec.h"
#include "cuda/gptq/problem.h"

namespace lpq::cuda::gptq {
namespace {

constexpr int64_t kLeaf = 128;

struct Factorisation {
  CudaExec& exec;
  double* a;
  int64_t ld;
  Scratch room, info;

  Factorisation(CudaExec& exec_, double* a_, int64_t k)
      : exec(exec_), a(a_), ld(k), room(exec.scratch(static_cast<size_t>(std::max<int64_t>(1, half(k) * (k - half(k)))) * 8)), info(exec.scratch(16)) {}

  static int64_t half(int64_t n) { return n <= kLeaf ? n : (n / 2 + kLeaf - 1) / kLeaf * kLeaf; }
  static int64_t panel(int64_t n) { return std::max<int64_t>(512, (n / 8 + kLeaf - 1) / kLeaf * kLeaf); }
  double* at(int64_t row, int64_t column) const { return a + row * ld + column; }

  // 0, or 1 + the column that failed; waits.
  int invert() {
    exec.fill_zero(info.as<void>(), info.bytes());
    invert(0, ld);
    int result = 0;
    exec.read_back(&result, info.as<void>(), sizeof result);
    return result;
  }

 private:
  void multiply(int64_t m, int64_t n, int64_t k, const double* x, int64_t ldx, const double* y, int64_t ldy, bool transpose_y, double alpha, double beta, double* z,
                int64_t ldz) {
    Gemm product;
    product.ab = product.out = DType::f64;
    product.m = m;
    product.n = n;
    product.k = k;
    product.a = x;
    product.lda = ldx;
    product.b = y;
    product.ldb = ldy;
    product.transpose_b = transpose_y;
    product.alpha = alpha;
    product.beta = beta;
    product.c = z;
    product.ldc = ldz;
    exec.gemm(product);
  }

  void invert(int64_t first, int64_t n) {
    if (n <= kLeaf) {
      exec.launch("lpq_gptq_factor_leaf", Dim3(1), Dim3(256), 0, at(first, first), ld, static_cast<int>(n), static_cast<int>(first), info.as<int>());
      return;
    }
    const int64_t h = half(n), below = n - h, second = first + h;
    double *x11 = at(first, first), *a21 = at(second, first), *a22 = at(second, second), *l21 = room.as<double>();
    invert(first, h);
    for (int64_t c = 0; c < h; c += panel(h)) {  // row c of X11 ends at column c
      const int64_t width = std::min(panel(h), h - c);
      multiply(below, width, c + width, a21, ld, at(first + c, first), ld, true, 1, 0, l21 + c, h);
    }
    for (int64_t r = 0; r < below; r += panel(below)) {  // the lower part only
      const int64_t height = std::min(panel(below), below - r);
      multiply(height, r + height, h, l21 + r * h, h, l21, h, true, -1, 1, a22 + r * ld, ld);
    }
    for (int64_t c = 0; c < h; c += panel(h)) {  // column c of X11 begins at row c
      const int64_t width = std::min(panel(h), h - c);
      multiply(below, width, h - c, l21 + c, h, x11 + c * ld + c, ld, false, 1, 0, a21 + c, ld);
    }
    invert(second, below);
    for (int64_t r = 0; r < below; r += panel(below)) {
      const int64_t height = std::min(panel(below), below - r);
      multiply(height, h, r + height, a22 + r * ld, ld, a21, ld, false, -1, 0, l21 + r * h, h);
    }
    exec.launch("lpq_gptq_factor_place", Dim3(n), Dim3(256), 0, static_cast<const double*>(l21), h, below, x11, ld);
  }
};

void factor(Call& call, CudaExec& exec) {
  on_device(exec, call);
  const Tensor &h = call.input(0), &order = call.input(1);
  const Tensor &u = call.output(0), &m = call.output(1), &dead = call.output(2), &info = call.output(3);
  require(h.rank() == 2 && h.dim(0) == h.dim(1) && h.dim(0) > 0, "H must be square");
  const int64_t k = h.dim(0);
  require(order.elements() == k && u.elements() == k * k && m.elements() == k * k && dead.elements() == k && info.elements() == 3,
          "gptq_factor: shapes disagree with K");
  double fraction = call.params.number("damp");
  require(fraction > 0 && fraction < 10, "damp must be between 0 and 10");
  const int ki = static_cast<int>(k);
  require(h.dtype == DType::f64 || h.dtype == DType::f32, "H is f64 or f32");
  const int narrow = h.dtype == DType::f32;
  const void* h_data = h.raw();
  const int32_t* order_data = order.data<int32_t>();
  uint8_t* dead_data = dead.data<uint8_t>();

  double facts[4];
  {
    Scratch seen = exec.scratch(static_cast<size_t>(k) * 4), diagonal = exec.scratch(static_cast<size_t>(k) * 8), facts_room = exec.scratch(32);
    exec.fill_zero(seen.as<void>(), seen.bytes());
    exec.launch("lpq_gptq_factor_facts", Dim3(1), Dim3(1024), 0, h_data, narrow, order_data, ki, seen.as<uint32_t>(), dead_data, diagonal.as<double>(), facts_room.as<double>());
    exec.read_back(facts, facts_room.as<void>(), sizeof facts);
  }
  require(facts[3] == 0, "order is not a permutation");
  if (facts[2] >= 0)
    throw Failure("LPQ_NATIVE_NUMERICS", "the Hessian holds NaN or infinity in column " + std::to_string(static_cast<int64_t>(facts[2])));
  const double mean = facts[0], largest = facts[1];

  Scratch reversed = exec.scratch(static_cast<size_t>(k * k) * 8), count = exec.scratch(8);
  Factorisation solver(exec, reversed.as<double>(), k);
  const int staged = k * 8 <= exec.device().shared_per_block;
  unsigned long long floored = 0;
  int attempts = 0;
  double floor_value = 0;
  for (;; fraction *= 3.1622776601683795) {  // as on the CPU
    ++attempts;
    if (fraction > 1.0 && attempts > 1) floor_value = 0.01 * largest;
    if (attempts > 12) throw Failure("LPQ_NATIVE_NUMERICS", "the Hessian cannot be factored even with damping " + std::to_string(fraction));
    exec.fill_zero(count.as<void>(), 8);
    exec.launch("lpq_gptq_factor_gather", Dim3(k), Dim3(512), staged ? static_cast<unsigned>(k * 8) : 0u, h_data, narrow, order_data, ki, static_cast<const uint8_t*>(dead_data), mean,
                fraction, floor_value, reversed.as<double>(), m.data<float>(), count.as<unsigned long long>(), staged);
    if (solver.invert() == 0) break;
  }
  exec.read_back(&floored, count.as<void>(), sizeof floored);
  exec.launch("lpq_gptq_factor_turn", Dim3(k), Dim3(256), 0, static_cast<const double*>(reversed.as<double>()), ki, u.data<float>());
  const double result[3] = {fraction, static_cast<double>(attempts), static_cast<double>(floored)};
  exec.write_small(info.data<double>(), result, sizeof result);
}

LPQ_CUDA_OP(factor, "gptq_factor");

}  // namespace
}  // namespace lpq::cuda::gptq
