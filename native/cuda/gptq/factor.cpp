// gptq_factor in f64: U is the inverse of a matrix whose condition number
// reaches K / damp, about 10^6, so f32 would leave it one or two correct digits in the worst direction. Only products
// whose result feeds nothing but U, which is f32, are of f16 planes (split.h), where they are large enough to pay
// (splitFrom).
//
// Only the inverse X = L^-1 is wanted. Recursively, for a matrix cut in two,
//     X11 = inverse of the upper left half;  L21 = A21 X11^T;  X22 = inverse of A22 - L21 L21^T;  X21 = -X22 (L21 X11),
// so all but the blocks of 128 on the diagonal are products, on f64 matrix units where the device has them. Products
// with a triangular operand go by panels, which leaves out most of its zeros. cuSOLVER's potrf and trtri took 3.6 times
// as long on an H200 (K = 14336: 185 ms instead of 52; bench/results).
#include <cmath>
#include <cstddef>
#include <optional>

#include "cuda/exec.h"
#include "cuda/gptq/problem.h"
#include "cuda/gptq/split.h"

namespace lpq::cuda::gptq {
namespace {

constexpr int64_t kLeaf = 128;
constexpr int64_t kRowsAtOnce = 2048;  // of a split operand

struct Factorisation {
  CudaExec& exec;
  double* a;
  int64_t ld;
  double* room;  // half(ld) (ld - half(ld)) numbers
  int* info;     // 0, or 1 + the column that failed

  static int64_t half(int64_t n) { return n <= kLeaf ? n : (n / 2 + kLeaf - 1) / kLeaf * kLeaf; }
  static int64_t panel(int64_t n) { return std::max<int64_t>(512, (n / 8 + kLeaf - 1) / kLeaf * kLeaf); }
  double* at(int64_t row, int64_t column) const { return a + row * ld + column; }

  int64_t split_from;
  void invert() { invert(0, ld, split_from == 0); }

 private:
  void multiply(int64_t m, int64_t n, int64_t k, const double* x, int64_t ldx, const double* y, int64_t ldy,
                bool transpose_y, double alpha, double beta, double* z, int64_t ldz) {
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

  // z = sign X Y from planes, for X [m, k] (lower: row i ends at column i) and Y [k, n] (likewise).
  void multiply_split(int64_t m, int64_t n, int64_t k, const double* x, int64_t ldx, bool lower_x, const double* y,
                      int64_t ldy, bool lower_y, double sign, double* z, int64_t ldz) {
    const int64_t most = std::min(m, kRowsAtOnce);
    const Scratch rows_of_x = exec.scratch(static_cast<size_t>(most) * 4),
                  rows_of_y = exec.scratch(static_cast<size_t>(k) * 4),
                  product = exec.scratch(static_cast<size_t>(most * n) * 4);
    const Room planes(exec, most, k), panel(exec, std::min(kDepth, k), n);
    const Source left{x, 0, ldx}, right{y, 0, ldy};
    const Units units{rows_of_y.as<int32_t>(), -1};
    row_units(exec, right, 0, k, n, {}, rows_of_y.as<int32_t>());
    for (int64_t row = 0; row < m; row += most) {
      const int64_t rows = std::min(most, m - row), depth = lower_x ? std::min(k, row + rows) : k;
      row_units(exec, left, row, rows, depth, units, rows_of_x.as<int32_t>());
      split_rows(exec, left, row, rows, depth, units, rows_of_x.as<int32_t>(), planes.planes());
      times_rows(exec, planes.planes(), rows, depth, right, n, {}, rows_of_y.as<int32_t>(),
                 lower_y ? Filled::lower : Filled::all, panel, product.as<float>());
      leave_units(exec, product.as<float>(), rows, n, {}, rows_of_x.as<int32_t>(), nullptr, nullptr, sign, false,
                  z + row * ldz, 0, ldz);
    }
  }

  // exact: other parts of the matrix depend on this one.
  void invert(int64_t first, int64_t n, bool exact) {
    if (n <= kLeaf) {
      exec.launch("lpq_gptq_factor_leaf", Dim3(1), Dim3(256), 0, at(first, first), ld, static_cast<int>(n),
                  static_cast<int>(first), info);
      return;
    }
    const int64_t h = half(n), below = n - h, second = first + h;
    double *x11 = at(first, first), *a21 = at(second, first), *a22 = at(second, second), *l21 = room;
    const bool split = !exact && n >= split_from;
    invert(first, h, true);
    for (int64_t c = 0; c < h; c += panel(h)) {  // row c of X11 ends at column c
      const int64_t width = std::min(panel(h), h - c);
      multiply(below, width, c + width, a21, ld, at(first + c, first), ld, true, 1, 0, l21 + c, h);
    }
    for (int64_t r = 0; r < below; r += panel(below)) {  // the lower part only
      const int64_t height = std::min(panel(below), below - r);
      multiply(height, r + height, h, l21 + r * h, h, l21, h, true, -1, 1, a22 + r * ld, ld);
    }
    if (split) multiply_split(below, h, h, l21, h, false, x11, ld, true, 1, a21, ld);
    for (int64_t c = 0; c < h && !split; c += panel(h)) {  // column c of X11 begins at row c
      const int64_t width = std::min(panel(h), h - c);
      multiply(below, width, h - c, l21 + c, h, x11 + c * ld + c, ld, false, 1, 0, a21 + c, ld);
    }
    invert(second, below, exact);
    if (split) multiply_split(below, h, below, a22, ld, true, a21, ld, false, -1, l21, h);
    for (int64_t r = 0; r < below && !split; r += panel(below)) {
      const int64_t height = std::min(panel(below), below - r);
      multiply(height, h, r + height, a22 + r * ld, ld, a21, ld, false, -1, 0, l21 + r * h, h);
    }
    exec.launch("lpq_gptq_factor_place", Dim3(n), Dim3(256), 0, static_cast<const double*>(l21), h, below, x11, ld);
  }
};

void factor(Call& call, CudaExec& exec) {
  const ops::GptqFactor of(call);
  const Tensor &h = of.h, &order = of.order, &u = of.u, &m = of.m, &dead = of.dead, &info = of.info;
  const int64_t k = h.dim(0);
  double fraction = of.damp;
  const int ki = static_cast<int>(k);
  const int narrow = h.dtype == DType::f32;
  const void* h_data = h.raw();
  const int32_t* order_data = order.data<int32_t>();
  uint8_t* dead_data = dead.data<uint8_t>();

  // What the host must know comes back once, after the factorisation; until then kernels read it where it is.
  struct Facts {
    double mean, largest, not_finite, no_permutation;
    unsigned long long floored;
    int failed, unused;
  } facts{};
  const Scratch facts_room = exec.scratch(sizeof facts), reversed = exec.scratch(static_cast<size_t>(k * k) * 8);
  double* on_device_facts = facts_room.as<double>();
  exec.fill_zero(facts_room.as<void>(), sizeof facts);
  {
    const Scratch seen = exec.scratch(static_cast<size_t>(k) * 4), diagonal = exec.scratch(static_cast<size_t>(k) * 8);
    exec.fill_zero(seen.as<void>(), seen.bytes());
    exec.launch("lpq_gptq_factor_facts", Dim3(1), Dim3(1024), 0, h_data, narrow, order_data, ki, seen.as<uint32_t>(),
                dead_data, diagonal.as<double>(), on_device_facts);
  }
  // M is written last: until then half of it, which is enough, is the room for a block of L.
  float* m_data = m.data<float>();
  std::optional<Scratch> own;
  if (reinterpret_cast<uintptr_t>(m_data) % 8 != 0) own.emplace(exec.scratch(static_cast<size_t>(k * k) * 2 + 8));
  Factorisation solver{exec,
                       reversed.as<double>(),
                       k,
                       own ? own->as<double>() : reinterpret_cast<double*>(m_data),
                       facts_room.as<int>(offsetof(Facts, failed)),
                       of.split_from};
  const int staged = k * 8 <= exec.device().shared_per_block;
  const auto gather = [&](double floor, double* to_reversed, float* to_m, unsigned long long* count) {
    exec.launch("lpq_gptq_factor_gather", Dim3(k), Dim3(512), staged ? static_cast<unsigned>(k * 8) : 0u, h_data,
                narrow, order_data, ki, static_cast<const uint8_t*>(dead_data),
                static_cast<const double*>(on_device_facts), fraction, floor, to_reversed, to_m, count, staged);
  };
  int attempts = 0;
  double floor = 0;
  for (;; fraction *= 3.1622776601683795) {  // as on the CPU
    ++attempts;
    if (fraction > 1.0 && attempts > 1) floor = 0.01;
    if (attempts > 12)
      throw Failure("LPQ_NATIVE_NUMERICS",
                    "the Hessian cannot be factored even with damping " + std::to_string(fraction));
    if (attempts > 1)
      exec.fill_zero(facts_room.as<void>(offsetof(Facts, floored)), sizeof facts - offsetof(Facts, floored));
    gather(floor, reversed.as<double>(), nullptr, facts_room.as<unsigned long long>(offsetof(Facts, floored)));
    solver.invert();
    exec.read_back(&facts, facts_room.as<void>(), sizeof facts);
    require(facts.no_permutation == 0, "order is not a permutation");
    if (facts.not_finite >= 0)
      throw Failure("LPQ_NATIVE_NUMERICS", "the Hessian holds NaN or infinity in column " +
                                               std::to_string(static_cast<int64_t>(facts.not_finite)));
    if (facts.failed == 0) break;
  }
  exec.launch("lpq_gptq_factor_turn", Dim3(k), Dim3(256), 0, static_cast<const double*>(reversed.as<double>()), ki,
              u.data<float>());
  gather(floor, nullptr, m_data, nullptr);
  const double result[3] = {fraction, static_cast<double>(attempts), static_cast<double>(facts.floored)};
  exec.write_small(info.data<double>(), result, sizeof result);
}

LPQ_CUDA_OP(factor, "gptq_factor");

}  // namespace
}  // namespace lpq::cuda::gptq
