// gptq_prune, gptq_sparse_solve and gptq_sparse_descend: blocks of 128 columns
// by sparse.cu, everything behind a block brought up to date by one product in fp32, as on the CPU. Products add in
// another order than the CPU's, so choices that cost the same to some 1e-6 may differ.
#include "cuda/gptq/sparse.h"

#include "cuda/exec.h"
#include "cuda/gptq/problem.h"
#include "cuda/launch.h"

namespace lpq::cuda::gptq {
namespace {

void launch_block(CudaExec& exec, const std::string& kernel, const SparseArgs& args) {
  exec.launch(kernel, Dim3(div_up(args.n, kSparseWarps)), Dim3(32 * kSparseWarps), 0, args);
}

std::string name_of(const char* op, const QuantType& type) {
  return std::string("lpq_gptq_sparse_") + op + (type.kind == QuantType::Kind::floating ? "_float" : "_int");
}

// All blocks of columns; x [n, k] are the targets or the gradient, `alpha` the sign with which a block's delta updates
// it.
void walk(CudaExec& exec, const std::string& kernel, SparseArgs args, float* x, float* delta, double alpha) {
  args.w = x;
  args.delta = delta;
  for (int64_t first = 0; first < args.k; first += kSparseBlock) {
    const int64_t last = std::min<int64_t>(first + kSparseBlock, args.k);
    args.first = static_cast<int>(first);
    args.width = static_cast<int>(last - first);
    launch_block(exec, kernel, args);
    if (last == args.k) continue;
    Gemm update;
    update.m = args.n;
    update.n = args.k - last;
    update.k = last - first;
    update.a = delta;
    update.lda = kSparseBlock;
    update.b = args.matrix + first * args.k + last;
    update.ldb = args.k;
    update.c = x + last;
    update.ldc = args.k;
    update.alpha = alpha;
    update.beta = 1;
    update.rows_alone = true;
    exec.gemm(update);
  }
}

SparseArgs arguments(const Problem& p, const QuantType& type, const Tensor& level, const Tensor& keep, bool fixed) {
  SparseArgs args{};
  args.grid = grid_spec(type);
  args.n = static_cast<int>(p.n);
  args.k = static_cast<int>(p.k);
  args.groups = static_cast<int>(p.groups);
  args.group = p.group;
  args.scale = p.scale;
  args.zero = p.zero;
  args.matrix = p.matrix;
  args.level = level.data<float>();
  args.keep = keep.data<float>();
  args.fixed = fixed;
  return args;
}

void prune(Call& call, CudaExec& exec) {
  const ops::GptqPrune op(call);
  SparseArgs args{};
  args.n = static_cast<int>(op.t.dim(0));
  args.k = static_cast<int>(op.t.dim(1));
  args.matrix = op.u.data<float>();
  args.level = op.pruned.data<float>();
  args.keep = op.keep.data<float>();
  if (op.t.elements() == 0) return;
  Scratch x = exec.scratch(static_cast<size_t>(op.t.elements()) * 4),
          delta = exec.scratch(static_cast<size_t>(op.t.dim(0) * kSparseBlock) * 4);
  exec.copy(x.as<float>(), op.t.data<float>(), static_cast<size_t>(op.t.elements()) * 4);
  walk(exec, "lpq_gptq_prune", args, x.as<float>(), delta.as<float>(), -1);
}

void sparse_solve(Call& call, CudaExec& exec) {
  const ops::GptqSolve of(call, true);
  const Problem p = read_problem(exec, of.problem);
  const SparseArgs args = arguments(p, of.type, of.level, *of.keep, of.fixed);
  if (p.n * p.k == 0) return;
  Scratch x = exec.scratch(static_cast<size_t>(p.n * p.k) * 4),
          delta = exec.scratch(static_cast<size_t>(p.n * kSparseBlock) * 4);
  exec.copy(x.as<float>(), p.t, static_cast<size_t>(p.n * p.k) * 4);
  walk(exec, name_of("solve", of.type), args, x.as<float>(), delta.as<float>(), -1);
}

void sparse_descend(Call& call, CudaExec& exec) {
  const ops::GptqDescend of(call, true);
  const Problem p = read_problem(exec, of.problems[0]);
  SparseArgs args = arguments(p, of.type, *of.levels[0], *of.keep, of.fixed);
  const int64_t sweeps = of.sweeps;
  Scratch moved = exec.scratch(8);
  exec.fill_zero(moved.as<void>(), 8);
  args.moved = moved.as<unsigned long long>();
  if (p.n * p.k > 0 && sweeps > 0) {
    const size_t area = static_cast<size_t>(p.n * p.k) * 4;
    Scratch error = exec.scratch(area), gradient = exec.scratch(area),
            delta = exec.scratch(static_cast<size_t>(p.n * kSparseBlock) * 4);
    for (int64_t sweep = 0; sweep < sweeps; ++sweep) {
      exec.launch("lpq_gptq_plain_error", Dim3(p.n), Dim3(256), 0, static_cast<const float*>(args.level), p.t, p.scale,
                  p.zero, p.group, static_cast<int>(p.groups), static_cast<int>(p.k), error.as<float>());
      Gemm product;
      product.m = p.n;
      product.n = product.k = p.k;
      product.a = error.as<float>();
      product.b = p.matrix;
      product.c = gradient.as<float>();
      product.lda = product.ldb = product.ldc = p.k;
      product.rows_alone = true;
      exec.gemm(product);
      walk(exec, name_of("descend", of.type), args, gradient.as<float>(), delta.as<float>(), 1);
    }
  }
  exec.launch("lpq_gptq_count_to_f64", Dim3(1), Dim3(1), 0,
              static_cast<const unsigned long long*>(moved.as<unsigned long long>()), of.changed.data<double>());
}

LPQ_CUDA_OP(prune, "gptq_prune");
LPQ_CUDA_OP(sparse_solve, "gptq_sparse_solve");
LPQ_CUDA_OP(sparse_descend, "gptq_sparse_descend");

}  // namespace
}  // namespace lpq::cuda::gptq
