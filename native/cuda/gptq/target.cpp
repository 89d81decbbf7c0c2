// gptq_target (contract: native/cpu/gptq/target.cpp). GPTAQ's correction alpha T D U^T U in f64, as on the CPU: H200's
// f64 matrix units are as fast as its plain f32. With more rows than columns D U^T U is formed first, which then
// serves every row; and of the triangular factor only what is not zero is multiplied.
#include "cuda/exec.h"
#include "cuda/gptq/problem.h"

namespace lpq::cuda::gptq {
namespace {

constexpr int64_t kPanel = 1024;

// y [m,k] = x U^T and y = x U for the upper triangular U [k,k], panel by panel.
void times_factor(CudaExec& exec, bool transposed, int64_t m, int64_t k, const double* x, const double* u, double* y) {
  for (int64_t first = 0; first < k; first += kPanel) {
    const int64_t width = std::min(kPanel, k - first);
    Gemm product;
    product.ab = product.out = DType::f64;
    product.m = m;
    product.n = width;
    product.lda = product.ldb = product.ldc = k;
    product.c = y + first;
    product.transpose_b = transposed;
    if (transposed) {  // row i of U is zero before column i
      product.k = k - first;
      product.a = x + first;
      product.b = u + first * k + first;
    } else {  // column j of U is zero behind row j
      product.k = first + width;
      product.a = x;
      product.b = u + first;
    }
    exec.gemm(product);
  }
}

void target(Call& call, CudaExec& exec) {
  on_device(exec, call);
  const Tensor &w = call.input(0), &order = call.input(1), &dead = call.input(2), &t = call.output(0), &bad = call.output(1);
  require(w.rank() == 2 && t.shape == w.shape, "W and T must be [N,K]");
  const int64_t n = w.dim(0), k = w.dim(1);
  require(order.elements() == k && dead.elements() == k && bad.elements() == 2, "order and dead must be [K], bad [2]");
  require(w.dtype == DType::f32 || w.dtype == DType::f16 || w.dtype == DType::bf16, "W must be f32, f16 or bf16");
  const int ki = static_cast<int>(k), dtype = w.dtype == DType::f32 ? 0 : w.dtype == DType::f16 ? 1 : 2;
  const int aligned = reinterpret_cast<uintptr_t>(w.raw()) % dtype_bytes(w.dtype) == 0, staged = k * 4 <= exec.device().shared_per_block;
  const int32_t* order_data = order.data<int32_t>();
  float* t_data = t.data<float>();
  Scratch counts = exec.scratch(16);
  const unsigned long long none[2] = {0, static_cast<unsigned long long>(n * k)};
  exec.write_small(counts.as<void>(), none, sizeof none);
  exec.launch("lpq_gptq_target", Dim3(n), Dim3(256), staged ? static_cast<unsigned>(k * 4) : 0u, reinterpret_cast<const uint8_t*>(w.raw()), dtype, aligned, order_data,
              static_cast<const uint8_t*>(dead.data<uint8_t>()), ki, t_data, staged,
              counts.as<unsigned long long>(),               exec.fault("LPQ_NATIVE_ARGUMENT", "order holds a column that is not there"));
  exec.launch("lpq_gptq_counts_to_f64", Dim3(1), Dim3(32), 0, static_cast<const unsigned long long*>(counts.as<unsigned long long>()), 2, bad.data<double>());
  const double alpha = call.params.number("alpha", 0.0);
  if (alpha == 0 || n * k == 0) return;
  const Tensor &drift = call.input(3), &u = call.input(4);
  require(drift.elements() == k * k && u.elements() == k * k, "D and U must be [K,K]");
  require(drift.dtype == DType::f64 || drift.dtype == DType::f32, "D is f64 or f32");
  Scratch difference = exec.scratch(static_cast<size_t>(k * k) * 8), factor = exec.scratch(static_cast<size_t>(k * k) * 8);
  exec.launch("lpq_gptq_target_difference", Dim3(k), Dim3(256), 0, static_cast<const void*>(drift.raw()), drift.dtype == DType::f32 ? 1 : 0, order_data,
              static_cast<const float*>(u.data<float>()), ki, difference.as<double>(), factor.as<double>());
  const bool first_matrix = n > k;
  const int64_t chunk = std::min<int64_t>(n, 4096);
  Scratch x = exec.scratch(static_cast<size_t>((first_matrix ? std::max(chunk, k) : chunk) * k) * 8), y = exec.scratch(static_cast<size_t>(chunk * k) * 8);
  if (first_matrix) {
    times_factor(exec, true, k, k, difference.as<double>(), factor.as<double>(), x.as<double>());
    times_factor(exec, false, k, k, x.as<double>(), factor.as<double>(), difference.as<double>());
  }
  for (int64_t row = 0; row < n; row += chunk) {
    const int64_t rows = std::min(chunk, n - row), count = rows * k;
    const Dim3 grid(blocks_for(exec, count, 256)), block(256);
    exec.launch("lpq_gptq_widen", grid, block, 0, static_cast<const float*>(t_data + row * k), x.as<double>(), count);
    Gemm product;
    product.ab = product.out = DType::f64;
    product.m = rows;
    product.n = product.k = k;
    product.a = x.as<void>();
    product.b = difference.as<void>();
    product.c = y.as<void>();
    exec.gemm(product);
    if (!first_matrix) {
      times_factor(exec, true, rows, k, y.as<double>(), factor.as<double>(), x.as<double>());
      times_factor(exec, false, rows, k, x.as<double>(), factor.as<double>(), y.as<double>());
    }
    exec.launch("lpq_gptq_target_add", grid, block, 0, static_cast<const double*>(y.as<double>()), alpha, t_data + row * k, count);
  }
}

LPQ_CUDA_OP(target, "gptq_target");

}  // namespace
}  // namespace lpq::cuda::gptq
