// gptq_solve, gptq_descend and their 2:4 siblings: codes from a target, block of columns by block of columns.
#include <algorithm>
#include <numeric>
#include <vector>

#include "cpu/gptq/floats.h"
#include "cpu/gptq/kernels.h"
#include "cpu/linalg/gemm.h"
#include "ops/gptq.h"

namespace lpq::gptq {
namespace {

struct Problem {
  int64_t n, k, groups;
  const float *t, *matrix, *scale, *zero;
  const int32_t* group;
};

Problem read_problem(const ops::GptqProblem& of) {
  const Problem p{of.n,
                  of.k,
                  of.groups,
                  of.t.data<float>(),
                  of.matrix.data<float>(),
                  of.scale.data<float>(),
                  of.zero.data<float>(),
                  of.group.data<int32_t>()};
  for (int64_t j = 0; j < p.k; ++j)
    if (p.group[j] < 0 || p.group[j] >= p.groups) require(false, "group holds an index outside the scales");
  return p;
}

using Block = void (*)(const BlockArgs&, int64_t, int64_t);

// Block by block of columns: `block` rounds (or prunes) w, the rest of w is then updated at once.
void walk(Exec& exec, const Problem& p, BlockArgs args, Block block) {
  const Floats w = floats(p.n * p.k), delta = floats(p.n * kBlock);
  exec.pool.for_each(p.n, 16, [&](int64_t row) { std::copy_n(p.t + row * p.k, p.k, w.get() + row * p.k); });
  args.w = w.get();
  args.delta = delta.get();
  for (int64_t first = 0; first < p.k; first += kBlock) {
    const int64_t last = std::min(first + kBlock, p.k);
    args.first = first;
    args.last = last;
    exec.pool.parallel_for(p.n, 16, [&](int64_t begin, int64_t end, int) { block(args, begin, end); });
    if (last < p.k)
      gemm_f32(exec.pool, Trans::no, Trans::no, p.n, p.k - last, last - first, -1, delta.get(), kBlock,
               p.matrix + first * p.k + last, p.k, 1, w.get() + last, p.k);
  }
}

void solve_with(Exec& exec, const ops::GptqSolve& of) {
  const Problem p = read_problem(of.problem);
  BlockArgs args{&of.type, p.k,     0, 0, p.group, p.scale, p.zero, p.groups, nullptr, of.level.data<float>(),
                 nullptr,  p.matrix};
  args.keep = of.keep ? of.keep->data<float>() : nullptr;
  args.fixed = of.fixed;
  walk(exec, p, args, of.keep ? kernels().sparse_solve : kernels().solve);
}

void prune(Call& call, Exec& exec) {
  const ops::GptqPrune of(call);
  const Problem p{of.t.dim(0), of.t.dim(1), 1, of.t.data<float>(), of.u.data<float>(), nullptr, nullptr, nullptr};
  const std::vector<int32_t> group(static_cast<size_t>(p.k), 0);
  BlockArgs args{nullptr, p.k,     0, 0, group.data(), nullptr, nullptr, 1, nullptr, of.pruned.data<float>(),
                 nullptr, p.matrix};
  args.keep = of.keep.data<float>();
  walk(exec, p, args, kernels().prune);
}

// One sweep over some rows, block by block of columns; codes that moved.
int64_t sweep_rows(BlockArgs args, Block block, int64_t begin, int64_t end) {
  int64_t moved = 0;
  for (args.first = 0; args.first < args.k; args.first = args.last) {
    args.last = std::min(args.first + kBlock, args.k);
    block(args, begin, end);
    moved += kernels().spread(args, begin, end);
  }
  return moved;
}

// Codes that moved, summed over the sweeps.
double descend_one(Exec& exec, const ops::GptqDescend& of, size_t which) {
  constexpr int64_t kRows = 16;  // of a task
  const Problem p = read_problem(of.problems[which]);
  float* level = of.levels[which]->data<float>();
  const Floats error = floats(p.n * p.k), gradient = floats(p.n * p.k), delta = floats(p.n * kBlock);
  const int64_t tasks = (p.n + kRows - 1) / kRows;
  std::vector<int64_t> moved(static_cast<size_t>(tasks));
  BlockArgs args{&of.type, p.k, 0, 0, p.group, p.scale, p.zero, p.groups, gradient.get(), level, delta.get(), p.matrix};
  args.keep = of.keep ? of.keep->data<float>() : nullptr;
  args.fixed = of.fixed;
  const Block block = of.keep ? kernels().sparse_descend : kernels().descend;
  double changed = 0;
  for (int64_t sweep = 0; sweep < of.sweeps; ++sweep) {
    exec.pool.for_each(p.n, 16, [&](int64_t row) {
      for (int64_t j = 0; j < p.k; ++j) {
        const int64_t at = row * p.k + j, g = row * p.groups + p.group[j];
        error[static_cast<size_t>(at)] = (level[at] - p.zero[g]) * p.scale[g] - p.t[at];
      }
    });
    // The gradient is computed afresh each sweep, so that rounding in its updates cannot accumulate.
    gemm_f32(exec.pool, Trans::no, Trans::no, p.n, p.k, p.k, 1, error.get(), p.k, p.matrix, p.k, 0, gradient.get(), p.k,
             products_of(of.bf16));
    exec.pool.for_each(tasks, 1, [&](int64_t task) {
      moved[static_cast<size_t>(task)] = sweep_rows(args, block, task * kRows, std::min(p.n, (task + 1) * kRows));
    });
    const int64_t sum = std::accumulate(moved.begin(), moved.end(), int64_t{0});
    changed += static_cast<double>(sum);
    if (sum == 0) break;
  }
  return changed;
}

void descend_with(Exec& exec, const ops::GptqDescend& of) {
  double& changed = *of.changed.data<double>();
  changed = 0;
  for (size_t i = 0; i < of.problems.size(); ++i) changed += descend_one(exec, of, i);
}

void solve(Call& call, Exec& exec) { solve_with(exec, ops::GptqSolve(call)); }
void sparse_solve(Call& call, Exec& exec) { solve_with(exec, ops::GptqSolve(call, true)); }
void descend(Call& call, Exec& exec) { descend_with(exec, ops::GptqDescend(call)); }
void sparse_descend(Call& call, Exec& exec) { descend_with(exec, ops::GptqDescend(call, true)); }

LPQ_OP(solve, "gptq_solve");
LPQ_OP(descend, "gptq_descend");
LPQ_OP(prune, "gptq_prune");
LPQ_OP(sparse_solve, "gptq_sparse_solve");
LPQ_OP(sparse_descend, "gptq_sparse_descend");

}  // namespace
}  // namespace lpq::gptq
