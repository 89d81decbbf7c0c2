// gptq_solve and gptq_descend: codes from a target, block of columns by block of columns.
//
//   gptq_solve    in:  T f32 [N,K], U f32 [K,K], scale f32 [N,G], zero f32 [N,G], group I32 [K]
//                 out: level f32 [N,K]
//                 GPTQ's walk: round a column, push its error onto the columns not yet rounded.
//   gptq_descend  in:  T, M f32 [K,K], scale, zero, group, level
//                 out: level (in place), changed f64 [1] = codes that moved, summed over the sweeps
//                 params: sweeps. Each code to its best value given all others, in the metric M: never increases (What
//                 - T) M (What - T)^T; stops when a sweep moves nothing.
//
// 2:4 sparsity (SparseGPT, Frantar and Alistarh 2023, section 3, whose saliency w^2 / U_jj^2 is here the exact price of
// each pair that may stay, rounding included). Columns 4i .. 4i+3 of the solving order are neighbours in the stored
// weight, K % 4 == 0:
//
//   gptq_prune           in: T, U; out: W f32 [N,K] pruned, not rounded; keep f32 [N,K] 1 where a weight stays, else 0
//   gptq_sparse_solve    as gptq_solve; out: level, the zero where pruned; keep
//   gptq_sparse_descend  as gptq_descend; in and out: level, changed, keep. Pairs change where that lowers the sum.
//   params of the last two: fixed (0|1, default 0): keep, of two ones in every four, is given and stays.
//
// Everything is in solving order; group[j] is the scale group of the j-th solved column. params: the type.
#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/gptq/kernels.h"
#include "cpu/linalg/gemm.h"
#include "lpq/exec.h"

namespace lpq::gptq {
namespace {

struct Problem {
  int64_t n, k, groups;
  const float *t, *matrix, *scale, *zero;
  const int32_t* group;
};

Problem read_problem(const Call& call) {
  const Tensor &t = call.input(0), &matrix = call.input(1), &scale = call.input(2), &zero = call.input(3),
               &group = call.input(4);
  require(t.rank() == 2, "T must be [N,K]");
  Problem p{t.dim(0),
            t.dim(1),
            0,
            t.data<float>(),
            matrix.data<float>(),
            scale.data<float>(),
            zero.data<float>(),
            group.data<int32_t>()};
  require(matrix.elements() == p.k * p.k, "the matrix must be [K,K]");
  require(scale.rank() == 2 && scale.dim(0) == p.n && zero.shape == scale.shape, "scale and zero must be [N,G]");
  p.groups = scale.dim(1);
  require(group.elements() == p.k, "group must be [K]");
  for (int64_t j = 0; j < p.k; ++j)
    require(p.group[j] >= 0 && p.group[j] < p.groups, "group holds an index outside the scales");
  return p;
}

using Block = void (*)(const BlockArgs&, int64_t, int64_t);

// [n, k] of who stays, of a 2:4 problem; null for an output that is not there.
float* read_keep(const Problem& p, const Tensor& keep) {
  require(p.k % 4 == 0, "2:4 needs K divisible by 4");
  require(keep.elements() == p.n * p.k, "keep must be [N,K]");
  return keep.data<float>();
}

// Block by block of columns: `block` rounds (or prunes) w, the rest of w is then updated at once.
void walk(Exec& exec, const Problem& p, BlockArgs args, Block block) {
  std::vector<float> w(static_cast<size_t>(p.n * p.k)), delta(static_cast<size_t>(p.n * kBlock));
  std::memcpy(w.data(), p.t, w.size() * sizeof(float));
  args.w = w.data();
  args.delta = delta.data();
  for (int64_t first = 0; first < p.k; first += kBlock) {
    const int64_t last = std::min(first + kBlock, p.k);
    args.first = first;
    args.last = last;
    exec.pool.parallel_for(p.n, 16, [&](int64_t begin, int64_t end, int) { block(args, begin, end); });
    if (last < p.k)
      gemm_f32(exec.pool, Trans::no, Trans::no, p.n, p.k - last, last - first, -1, delta.data(), kBlock,
               p.matrix + first * p.k + last, p.k, 1, w.data() + last, p.k);
  }
}

void solve_with(Call& call, Exec& exec, bool sparse) {
  const Problem p = read_problem(call);
  Tensor level = call.output(0);
  require(level.elements() == p.n * p.k, "level must be [N,K]");
  const QuantType type = QuantType::from(call.params);
  BlockArgs args{&type, p.k, 0, 0, p.group, p.scale, p.zero, p.groups, nullptr, level.data<float>(), nullptr, p.matrix};
  if (sparse) args.keep = read_keep(p, call.output(1));
  args.fixed = call.params.integer("fixed", 0) != 0;
  walk(exec, p, args, sparse ? kernels().sparse_solve : kernels().solve);
}

void prune(Call& call, Exec& exec) {
  const Tensor &t = call.input(0), &u = call.input(1);
  Tensor w = call.output(0);
  require(t.rank() == 2 && w.shape == t.shape && u.elements() == t.dim(1) * t.dim(1), "gptq_prune: shapes disagree");
  const Problem p{t.dim(0), t.dim(1), 1, t.data<float>(), u.data<float>(), nullptr, nullptr, nullptr};
  const std::vector<int32_t> group(static_cast<size_t>(p.k), 0);
  BlockArgs args{nullptr, p.k, 0, 0, group.data(), nullptr, nullptr, 1, nullptr, w.data<float>(), nullptr, p.matrix};
  args.keep = read_keep(p, call.output(1));
  walk(exec, p, args, kernels().prune);
}

void descend_with(Call& call, Exec& exec, bool sparse) {
  const Problem p = read_problem(call);
  Tensor level_out = call.output(0), changed_out = call.output(1);
  require(level_out.elements() == p.n * p.k && changed_out.elements() == 1, "level must be [N,K] and changed [1]");
  const QuantType type = QuantType::from(call.params);
  const int64_t sweeps = call.params.integer("sweeps");
  float* level = level_out.data<float>();
  const size_t size = static_cast<size_t>(p.n * p.k);
  std::vector<float> error(size), gradient(size), delta(static_cast<size_t>(p.n * kBlock));
  std::vector<int64_t> moved(static_cast<size_t>(p.n));
  BlockArgs args{&type, p.k, 0, 0, p.group, p.scale, p.zero, p.groups, gradient.data(), level, delta.data(), p.matrix};
  if (sparse) args.keep = read_keep(p, call.output(2));
  args.fixed = call.params.integer("fixed", 0) != 0;
  const Block block = sparse ? kernels().sparse_descend : kernels().descend;
  double& changed = *changed_out.data<double>();
  changed = 0;
  for (int64_t sweep = 0; sweep < sweeps; ++sweep) {
    exec.pool.parallel_for(p.n, 16, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        moved[static_cast<size_t>(row)] = 0;
        for (int64_t j = 0; j < p.k; ++j) {
          const int64_t at = row * p.k + j, g = row * p.groups + p.group[j];
          error[static_cast<size_t>(at)] = (level[at] - p.zero[g]) * p.scale[g] - p.t[at];
        }
      }
    });
    // The gradient is computed afresh each sweep, so that rounding in its updates cannot accumulate.
    gemm_f32(exec.pool, Trans::no, Trans::no, p.n, p.k, p.k, 1, error.data(), p.k, p.matrix, p.k, 0, gradient.data(),
             p.k);
    for (int64_t first = 0; first < p.k; first += kBlock) {
      const int64_t last = std::min(first + kBlock, p.k);
      args.first = first;
      args.last = last;
      exec.pool.parallel_for(p.n, 16, [&](int64_t begin, int64_t end, int) {
        block(args, begin, end);
        for (int64_t row = begin; row < end; ++row)
          for (int64_t j = 0; j < last - first; ++j)
            moved[static_cast<size_t>(row)] += delta[static_cast<size_t>(row * kBlock + j)] != 0;
      });
      if (last < p.k)
        gemm_f32(exec.pool, Trans::no, Trans::no, p.n, p.k - last, last - first, 1, delta.data(), kBlock,
                 p.matrix + first * p.k + last, p.k, 1, gradient.data() + last, p.k);
    }
    int64_t sum = 0;
    for (int64_t m : moved) sum += m;
    changed += static_cast<double>(sum);
    if (sum == 0) break;
  }
}

void solve(Call& call, Exec& exec) { solve_with(call, exec, false); }
void sparse_solve(Call& call, Exec& exec) { solve_with(call, exec, true); }
void descend(Call& call, Exec& exec) { descend_with(call, exec, false); }
void sparse_descend(Call& call, Exec& exec) { descend_with(call, exec, true); }

LPQ_OP(solve, "gptq_solve");
LPQ_OP(descend, "gptq_descend");
LPQ_OP(prune, "gptq_prune");
LPQ_OP(sparse_solve, "gptq_sparse_solve");
LPQ_OP(sparse_descend, "gptq_sparse_descend");

}  // namespace
}  // namespace lpq::gptq
