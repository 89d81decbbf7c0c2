// gptq_target and gptq_correction. GPTAQ's correction alpha T D U^T U from f16
// planes (split.h): U^T U is as ill-conditioned as H, so that one plane, or tf32, would leave nothing of it in the
// worst direction. Columns are in units of U's largest entries, rows of U in units of their own, which cancel between
// the two products with it. Weights of 16 bits fit one plane exactly.
#include "cuda/exec.h"
#include "cuda/gptq/problem.h"
#include "cuda/gptq/split.h"

namespace lpq::cuda::gptq {
namespace {

constexpr int64_t kRowsAtOnce = 4096;

// X U^T U for rows X, some at a time.
struct Inverse {
  CudaExec& exec;
  int64_t k, most;
  Source u;
  Scratch columns, rows_of_u, first, second;
  Room panel, planes;
  Scratch product;

  Inverse(CudaExec& exec_, int64_t k_, int64_t most_, const float* u_)
      : exec(exec_),
        k(k_),
        most(most_),
        u{u_, 1, k_},
        columns(exec.scratch(static_cast<size_t>(k) * 4)),
        rows_of_u(exec.scratch(static_cast<size_t>(k) * 4)),
        first(exec.scratch(static_cast<size_t>(most) * 4)),
        second(exec.scratch(static_cast<size_t>(most) * 4)),
        panel(exec, std::min(kDepth, k), k),
        planes(exec, most, k),
        product(exec.scratch(static_cast<size_t>(most * k) * 4)) {
    exec.launch("lpq_gptq_column_units", Dim3((k + 31) / 32), Dim3(32, 32), 0, u_, static_cast<int>(k),
                columns.as<int32_t>());
    row_units(exec, u, 0, k, k, scaled(), rows_of_u.as<int32_t>());
  }
  Units scaled() const { return {columns.as<int32_t>(), 1}; }
  Units inverse_scaled() const { return {columns.as<int32_t>(), -1}; }

  // to (+)= weight X U^T U 2^-before for rows row0 .. row0 + rows of x, which are in `units`; x may be `product`.
  void apply(Source x, int64_t row0, int64_t rows, Units units, const int32_t* before, double weight, bool add,
             float* to) {
    float* out = product.as<float>();
    row_units(exec, x, row0, rows, k, units, first.as<int32_t>());
    split_rows(exec, x, row0, rows, k, units, first.as<int32_t>(), planes.planes());
    times_transposed(exec, planes.planes(), rows, k, u, scaled(), rows_of_u.as<int32_t>(), panel, out);
    const Source z{out, 1, k};
    const Units balance{rows_of_u.as<int32_t>(), -2};
    row_units(exec, z, 0, rows, k, balance, second.as<int32_t>());
    split_rows(exec, z, 0, rows, k, balance, second.as<int32_t>(), planes.planes());
    times_rows(exec, planes.planes(), rows, k, u, k, scaled(), rows_of_u.as<int32_t>(), Filled::upper, panel, out);
    leave_units(exec, out, rows, k, scaled(), first.as<int32_t>(), second.as<int32_t>(), before, weight, add, to, 1, k);
  }
};

// A copy of `order` whose entries can all be used; others fail the next wait.
Scratch checked_order(CudaExec& exec, const Tensor& order, int64_t k) {
  Scratch checked = exec.scratch(static_cast<size_t>(k) * 4);
  exec.launch("lpq_gptq_check_groups", Dim3((k + 255) / 256), Dim3(256), 0,
              static_cast<const int32_t*>(order.data<int32_t>()), static_cast<int>(k), static_cast<int>(k),
              checked.as<int32_t>(), exec.fault("LPQ_NATIVE_ARGUMENT", "order holds a column that is not there"));
  return checked;
}

Source read_drift(const Tensor& drift, int64_t k, const int32_t* order) {
  return {drift.raw(), drift.dtype == DType::f32 ? 1 : 0, k, order};
}

void correction(Call& call, CudaExec& exec) {
  const ops::GptqCorrection op(call);
  const int64_t k = op.drift.dim(0);
  if (k == 0) return;
  const Scratch checked = checked_order(exec, op.order, k);
  const Source d = read_drift(op.drift, k, checked.as<int32_t>());
  Inverse inverse(exec, k, std::min(k, kRowsAtOnce), op.u.data<float>());
  for (int64_t row = 0; row < k; row += kRowsAtOnce)
    inverse.apply(d, row, std::min(kRowsAtOnce, k - row), inverse.inverse_scaled(), nullptr, 1, false,
                  op.matrix.data<float>() + row * k);
}

void target(Call& call, CudaExec& exec) {
  const ops::GptqTarget of(call);
  const Tensor &w = of.w, &order = of.order, &dead = of.dead, &t = of.t, &bad = of.bad;
  const int64_t n = w.dim(0), k = w.dim(1);
  const int ki = static_cast<int>(k), dtype = w.dtype == DType::f32 ? 0 : w.dtype == DType::f16 ? 1 : 2;
  const int aligned = reinterpret_cast<uintptr_t>(w.raw()) % dtype_bytes(w.dtype) == 0,
            staged = k * 4 <= exec.device().shared_per_block;
  float* t_data = t.data<float>();
  Scratch counts = exec.scratch(16);
  const unsigned long long none[2] = {0, static_cast<unsigned long long>(n * k)};
  exec.write_small(counts.as<void>(), none, sizeof none);
  exec.launch("lpq_gptq_target", Dim3(n), Dim3(256), staged ? static_cast<unsigned>(k * 4) : 0u,
              reinterpret_cast<const uint8_t*>(w.raw()), dtype, aligned, order.data<int32_t>(),
              static_cast<const uint8_t*>(dead.data<uint8_t>()), ki, t_data, staged, counts.as<unsigned long long>(),
              exec.fault("LPQ_NATIVE_ARGUMENT", "order holds a column that is not there"));
  exec.launch("lpq_gptq_counts_to_f64", Dim3(1), Dim3(32), 0,
              static_cast<const unsigned long long*>(counts.as<unsigned long long>()), 2, bad.data<double>());
  const double alpha = of.alpha;
  if (alpha == 0 || n * k == 0) return;
  // T X 2^-units for the rows of a chunk; X = D, of which U^T U is still to come, or the finished matrix.
  const bool finished = of.matrix != nullptr;
  const Tensor& matrix = finished ? *of.matrix : *of.drift;
  const int64_t most = std::min(n, kRowsAtOnce);
  std::optional<Scratch> checked;
  if (!finished) checked.emplace(checked_order(exec, order, k));
  const Source x = finished ? Source{matrix.raw(), 1, k} : read_drift(matrix, k, checked->as<int32_t>());
  const bool exact = w.dtype != DType::f32;
  Scratch rows_of_x = exec.scratch(static_cast<size_t>(k) * 4), rows_of_t = exec.scratch(static_cast<size_t>(most) * 4);
  std::optional<Inverse> inverse;
  std::optional<Scratch> own;
  if (finished) own.emplace(exec.scratch(static_cast<size_t>(most * k) * 4));
  else inverse.emplace(exec, k, most, of.u->data<float>());
  const Units columns = finished ? Units{} : inverse->inverse_scaled(), weights{rows_of_x.as<int32_t>(), -1};
  row_units(exec, x, 0, k, k, columns, rows_of_x.as<int32_t>());
  float* product = finished ? own->as<float>() : inverse->product.as<float>();
  for (int64_t row = 0; row < n; row += most) {
    const int64_t rows = std::min(most, n - row);
    float* to = t_data + row * k;
    {
      const Room planes(exec, rows, k, !exact), panel(exec, std::min(kDepth, k), k);
      row_units(exec, {to, 1, k}, 0, rows, k, weights, rows_of_t.as<int32_t>());
      split_rows(exec, {to, 1, k}, 0, rows, k, weights, rows_of_t.as<int32_t>(), planes.planes());
      times_rows(exec, planes.planes(), rows, k, x, k, columns, rows_of_x.as<int32_t>(), Filled::all, panel, product);
    }
    if (finished)
      leave_units(exec, product, rows, k, {}, rows_of_t.as<int32_t>(), nullptr, nullptr, alpha, true, to, 1, k);
    else inverse->apply({product, 1, k}, 0, rows, {}, rows_of_t.as<int32_t>(), alpha, true, to);
  }
}

LPQ_CUDA_OP(correction, "gptq_correction");
LPQ_CUDA_OP(target, "gptq_target");

}  // namespace
}  // namespace lpq::cuda::gptq
