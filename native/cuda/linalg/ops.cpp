// Second moments: x is 16-bit, so every product is exact in fp32. One call adds the fp32 sum over its rows (a batch,
// some thousands) to H, f32 with one rounding an element, or f64. The sum inside a product goes wrong by at most
// rows/16 steps of 2^-24, that of H by calls * 2^-25: together under 1e-4 of the diagonal for 2^18 rows, a hundredth of
// what damping (1 % of the mean diagonal) adds.
#include <cmath>

#include "cuda/linalg/rounded.h"
#include "ops/linalg.h"

namespace lpq::cuda {
namespace {

constexpr int kThreads = 256;

// x Wᵀ needs one dtype: weights are converted to that of x when they differ, and both to bf16 where x is f32 and the
// call says so.
void linear(Call& call, CudaExec& exec) {
  const ops::Linear a(call);
  require(!a.banded, "weight has the shape " + shape_text(a.weight.shape) + ", which only the CPU reads");
  const Tensor &x = a.x, &weight = a.weight, &y = a.y;
  const int64_t m = x.dim(0), k = x.dim(1), n = weight.dim(0);
  Gemm product;
  product.m = m;
  product.n = n;
  product.k = k;
  const Operand left(exec, x, a.bf16 && x.dtype == DType::f32 ? DType::bf16 : x.dtype);
  product.ab = a.bf16 && x.dtype == DType::f32 ? DType::bf16 : x.dtype;
  const Operand right(exec, weight, product.ab);
  product.a = left.data();
  product.b = right.data();
  product.c = y.raw();
  product.out = y.dtype;
  product.transpose_b = true;
  product.beta = a.accumulate ? 1 : 0;
  exec.gemm(product);
  if (a.bias) {
    const long long rows = m, columns = n;
    exec.launch("lpq_bias" + suffix(y), {stride_blocks(exec, m * n, kThreads)}, {kThreads}, 0, y.raw(), a.bias->raw(),
                type_index(a.bias->dtype), rows, columns);
  }
}

void require_finite(CudaExec& exec, const char* name, const Tensor& x) {
  uint32_t* fault = exec.fault("LPQ_NATIVE_NUMERICS", std::string(name) + " holds NaN or infinity");
  const long long count = x.elements();
  const int vec = count % 4 == 0 && fours(x);
  exec.launch("lpq_finite" + suffix(x), {stride_blocks(exec, vec ? count / 4 : count, kThreads)}, {kThreads}, 0,
              x.raw(), count, vec, fault);
}

// Two matrices of T rows and as many columns, of one dtype, as products read them.
struct Pair {
  const std::byte *a, *b;
  DType dtype;
  int64_t rows, columns;
};

// Adds weight * a[:, rows]ᵀ b[:, 0..columns) to rows of `sum`.
void add_product(CudaExec& exec, const Pair& of, const Tensor& sum, int64_t first, int64_t rows, int64_t columns,
                 double weight) {
  const int64_t n = of.columns;
  Gemm product;
  product.m = rows;
  product.n = columns;
  product.k = of.rows;
  product.a = of.a + static_cast<size_t>(first) * dtype_bytes(of.dtype);
  product.b = of.b;
  product.ab = of.dtype;
  product.out = DType::f32;
  product.transpose_a = true;
  product.lda = product.ldb = n;
  if (sum.dtype == DType::f32) {
    product.c = sum.data<float>() + first * n;
    product.ldc = n;
    product.alpha = weight;
    product.beta = 1;
    exec.gemm(product);
    return;
  }
  const Scratch part = exec.scratch(static_cast<size_t>(rows * columns) * 4);
  float* from = part.as<float>();
  product.c = from;
  exec.gemm(product);
  double* to = sum.data<double>() + first * n;
  const long long height = rows, width = columns, apart = n;
  exec.launch("lpq_add_to_f64", {stride_blocks(exec, rows * columns, kThreads)}, {kThreads}, 0, from, to, height, width,
              apart, weight);
}

// Finite inputs may still overflow f32; the diagonal bounds the rest.
void check_diagonal(CudaExec& exec, const Tensor& sum, int64_t n) {
  uint32_t* fault = exec.fault("LPQ_NATIVE_NUMERICS", "the products overflow f32, or the sum was not finite before");
  const long long size = n;
  exec.launch("lpq_finite_diagonal" + suffix(sum), {div_up(n, kThreads)}, {kThreads}, 0, sum.raw(), size, fault);
}

DType read_as(const ops::Moments& op) { return op.bf16 && op.a.dtype == DType::f32 ? DType::bf16 : op.a.dtype; }

// The lower triangle in panels of rows, each up to its last column: (1 + 1/panels)/2 of the work of a full product.
void gram_accumulate(Call& call, CudaExec& exec) {
  const ops::Moments op(call, true);
  const int64_t rows = op.a.dim(0), n = op.a.dim(1);
  if (rows == 0 || n == 0) return;
  require_finite(exec, "x", op.a);
  const Operand x(exec, op.a, read_as(op));
  const std::byte* data = static_cast<const std::byte*>(x.data());
  const Pair of{data, data, read_as(op), rows, n};
  const int64_t panel = n >= 8192 ? 2048 : 1024;
  for (int64_t first = 0; first < n; first += panel) {
    const int64_t height = std::min(panel, n - first);
    add_product(exec, of, op.sum, first, height, first + height, op.weight);
  }
  check_diagonal(exec, op.sum, n);
}

void cross_accumulate(Call& call, CudaExec& exec) {
  const ops::Moments op(call, false);
  const int64_t rows = op.a.dim(0), n = op.a.dim(1);
  if (rows == 0 || n == 0) return;
  require_finite(exec, "a", op.a);
  require_finite(exec, "b", op.b);
  const Operand a(exec, op.a, read_as(op)), b(exec, op.b, read_as(op));
  const Pair of{static_cast<const std::byte*>(a.data()), static_cast<const std::byte*>(b.data()), read_as(op), rows, n};
  const int64_t panel = op.sum.dtype == DType::f32 ? n : 1024;  // bounds the scratch of f64 sums
  for (int64_t first = 0; first < n; first += panel)
    add_product(exec, of, op.sum, first, std::min(panel, n - first), n, op.weight);
}

void gram_finish(Call& call, CudaExec& exec) {
  const Tensor& h = ops::GramFinish(call).h;
  const int n = static_cast<int>(h.dim(0));
  exec.launch("lpq_mirror" + suffix(h), {div_up(n, 32), div_up(n, 32)}, {32, 8}, 0, h.raw(), n);
}

void cross_drift(Call& call, CudaExec& exec) {
  const ops::CrossDrift op(call);
  const int n = static_cast<int>(op.h.dim(0));
  if (n == 0) return;
  exec.launch("lpq_cross_drift" + suffix(op.c), {div_up(n, 32), div_up(n, 32)}, {32, 8}, 0, op.h.raw(), op.c.raw(), n,
              op.scale);
}

void diagonal(Call& call, CudaExec& exec) {
  const ops::Diagonal op(call);
  const long long n = op.h.dim(0);
  exec.launch("lpq_diagonal" + suffix(op.h), {div_up(n, kThreads)}, {kThreads}, 0, op.h.raw(), op.d.data<double>(), n);
}

void cholesky(Call& call, CudaExec& exec) {
  const ops::Cholesky op(call);
  const long long n = op.a.dim(0);
  if (n == 0) return exec.fill_zero(op.info.raw(), op.info.bytes());
  const Cusolver& solver = exec.solver();
  double* data = op.a.data<double>();
  size_t device_bytes = 0, host_bytes = 0;
  // Our lower triangle is the upper one of a column-major matrix.
  check_library(
      solver.potrf_size(solver.handle, solver.params, kUpper, n, kReal64, data, n, kReal64, &device_bytes, &host_bytes),
      "cuSOLVER", "asking for the size of a factorisation");
  const Scratch work = exec.scratch(device_bytes);
  std::vector<char> host(host_bytes);
  check_library(solver.potrf(solver.handle, solver.params, kUpper, n, kReal64, data, n, kReal64, work.as<void>(),
                             device_bytes, host.empty() ? nullptr : host.data(), host_bytes, op.info.data<int32_t>()),
                "cuSOLVER", "factoring a matrix");
  if (host_bytes > 0) check(driver().stream_wait(exec.stream()), "waiting for a factorisation");
  exec.launch("lpq_clear_upper_f64", {n}, {256}, 0, data, n);
}

}  // namespace
LPQ_CUDA_OP(linear, "linear");
LPQ_CUDA_OP(gram_accumulate, "gram_accumulate");
LPQ_CUDA_OP(cross_accumulate, "cross_accumulate");
LPQ_CUDA_OP(gram_finish, "gram_finish");
LPQ_CUDA_OP(cross_drift, "cross_drift");
LPQ_CUDA_OP(diagonal, "diagonal");
LPQ_CUDA_OP(cholesky, "cholesky");
}  // namespace lpq::cuda
