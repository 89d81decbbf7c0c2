// gemm, linear_input_gradient, linear_weight_gradient. With bf16 operands are rounded to that first, and products
// accumulate in fp32; without, they are fp32 throughout.
#include "cuda/linalg/rounded.h"
#include "ops/backward.h"
#include "ops/linalg.h"

namespace lpq::cuda {
namespace {

void multiply(CudaExec& exec, Gemm product, const Tensor& a, const Tensor& b, bool bf16) {
  product.ab = bf16 ? DType::bf16 : DType::f32;
  const Operand left(exec, a, product.ab), right(exec, b, product.ab);
  product.a = left.data(), product.b = right.data();
  exec.gemm(product);
}

void gemm(Call& call, CudaExec& exec) {
  const ops::MatrixProduct of(call);
  Gemm product;
  product.m = of.m, product.n = of.n, product.k = of.k;
  product.transpose_a = of.transpose_a, product.transpose_b = of.transpose_b;
  product.alpha = of.alpha, product.beta = of.beta;
  product.c = of.c.raw(), product.out = of.c.dtype;
  if (of.a.dtype == DType::f32) return multiply(exec, product, of.a, of.b, of.bf16);
  product.a = of.a.raw(), product.b = of.b.raw(), product.ab = DType::f64;
  exec.gemm(product);
}

void linear_input_gradient(Call& call, CudaExec& exec) {
  const ops::LinearInputGradient of(call);
  Gemm product;
  product.m = of.dy.dim(0), product.n = of.dx.dim(1), product.k = of.dy.dim(1);
  product.c = of.dx.raw(), product.out = DType::f32;
  product.beta = of.accumulate ? 1 : 0;
  multiply(exec, product, of.dy, of.weight, of.bf16);
}

void linear_weight_gradient(Call& call, CudaExec& exec) {
  const ops::LinearWeightGradient of(call);
  Gemm product;
  product.m = of.dy.dim(1), product.n = of.x.dim(1), product.k = of.x.dim(0);
  product.transpose_a = true;
  product.c = of.dw.raw(), product.out = DType::f32;
  product.beta = of.accumulate ? 1 : 0;
  multiply(exec, product, of.dy, of.x, of.bf16);
}

}  // namespace
LPQ_CUDA_OP(gemm, "gemm");
LPQ_CUDA_OP(linear_input_gradient, "linear_input_gradient");
LPQ_CUDA_OP(linear_weight_gradient, "linear_weight_gradient");
}  // namespace lpq::cuda
