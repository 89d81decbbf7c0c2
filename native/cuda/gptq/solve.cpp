// gptq_solve and gptq_descend.
//
// One kernel walks a block of 128 columns for all rows; products bring the next columns up to date only when their turn
// comes (a left-looking walk): 512 columns at a time from everything before them, then 128 at a time from inside the
// 512. So every element of T is read and written a few times only, and a descent's sweep costs one product N x K x K
// with errors that are always current, where updating to the right and starting from a fresh gradient costs one and a
// half.
//
// Precision (params: passes). 3: both operands as two 16-bit planes, hi hi + lo hi + hi lo, accumulated in fp32: about
// 2^-17 of the operands for bf16 (solve), 2^-22 for f16 in scaled units (descend; block.h). 1: one plane, 2^-9 or
// 2^-12. Solve defaults to 3 and then differs from the CPU by codes whose targets lie within about 1e-4 of a step from
// a tie.
// Descend defaults to 1: a gradient that is off by 2^-12 of its terms moves decisions only within about 1e-3 of a step
// from a tie, where either code costs nearly the same: measured on an H200 the module error after five sweeps is within
// 1e-4 of three passes' either way, on CPU-sized problems the objective within 4e-4 of the CPU's (bench/results).
#include <deque>

#include "cuda/branches.h"
#include "cuda/exec.h"
#include "cuda/gptq/problem.h"

namespace lpq::cuda::gptq {
namespace {

// Scale and zero by group, so that a warp's rows lie side by side.
struct Transposed {
  Scratch scale, zero;
  Transposed(CudaExec& exec, const Problem& p) : scale(room(exec, p)), zero(room(exec, p)) {
    const Dim3 grid((p.groups + 31) / 32, (p.n + 31) / 32), block(32, 8);
    exec.launch("lpq_gptq_transpose", grid, block, 0, p.scale, scale.as<float>(), static_cast<int>(p.n),
                static_cast<int>(p.groups));
    exec.launch("lpq_gptq_transpose", grid, block, 0, p.zero, zero.as<float>(), static_cast<int>(p.n),
                static_cast<int>(p.groups));
  }
  static Scratch room(CudaExec& exec, const Problem& p) {
    return exec.scratch(static_cast<size_t>(p.n * p.groups) * 4);
  }
  void give(BlockArgs& args, const Problem& p) const {
    args.group = p.group;
    args.scale_t = scale.as<float>();
    args.zero_t = zero.as<float>();
  }
};

// The diagonal blocks as the walk reads them.
Scratch block_operands(CudaExec& exec, const char* op, const Problem& p, const int32_t* column_exponent) {
  const int64_t blocks = (p.k + kBlockColumns - 1) / kBlockColumns;
  Scratch room = exec.scratch(static_cast<size_t>(blocks * kBlockWords) * 16);
  exec.launch(std::string("lpq_gptq_") + op + "_operands", Dim3(blocks), Dim3(256), 0, p.matrix, static_cast<int>(p.k),
              column_exponent, room.as<uint4>());
  return room;
}

void launch_block(CudaExec& exec, const char* op, BlockArgs& args) {
  args.full = args.width == kBlockColumns && args.k % 8 == 0 &&
              ((reinterpret_cast<uintptr_t>(args.level) | reinterpret_cast<uintptr_t>(args.t) |
                reinterpret_cast<uintptr_t>(args.hi) | reinterpret_cast<uintptr_t>(args.lo)) &
               15) == 0;
  // Few rows: 16 a warp and two warps a block, which reaches more multiprocessors; both halves of a warp walk the same
  // rows.
  const int tiles = args.n <= exec.device().multiprocessors * 64 ? 1 : 2, rows = tiles == 1 ? 32 : 128;
  // Only the one-bit type has a zero with a fraction.
  const char* grid = args.grid.is_float ? "_float_" : args.grid.bits == 1 ? "_any_" : "_whole_";
  exec.launch(std::string("lpq_gptq_") + op + grid + std::to_string(tiles), Dim3((args.n + rows - 1) / rows),
              Dim3(tiles == 1 ? 64 : 128), static_cast<unsigned>(kBlockWords * 16 + rows * kBlockRowBytes), args);
}

void solve(Call& call, CudaExec& exec) {
  const ops::GptqSolve of(call);
  const Problem p = read_problem(exec, of.problem);
  const int64_t passes = of.passes;
  const int64_t n = p.n, k = p.k, area = n * k;
  if (area == 0) return;
  const Transposed grid(exec, p);
  Scratch u_planes = exec.scratch(static_cast<size_t>(k * k) * 4),
          error_planes = exec.scratch(static_cast<size_t>(area) * 4);
  Scratch x = exec.scratch(static_cast<size_t>(n * kOuterColumns) * 4);
  uint16_t *u_hi = u_planes.as<uint16_t>(), *u_lo = u_hi + k * k, *e_hi = error_planes.as<uint16_t>(),
           *e_lo = e_hi + area;
  exec.launch("lpq_gptq_split_bf16", Dim3(blocks_for(exec, k * k, 256)), Dim3(256), 0, p.matrix, u_hi, u_lo, k * k);
  const Planes u{u_hi, passes == 3 ? u_lo : nullptr}, e{e_hi, passes == 3 ? e_lo : nullptr};
  BlockArgs args{};
  args.grid = grid_spec(of.type);
  args.n = static_cast<int>(n);
  args.k = static_cast<int>(k);
  args.ldx = kOuterColumns;
  grid.give(args, p);
  args.level = of.level.data<float>();
  const Scratch blocks = block_operands(exec, "solve", p, nullptr);
  args.blocks = blocks.as<uint4>();
  args.hi = e_hi;
  args.lo = passes == 3 ? e_lo : nullptr;
  for (int64_t outer = 0; outer < k; outer += kOuterColumns) {
    const int64_t outer_width = std::min<int64_t>(kOuterColumns, k - outer);
    exec.launch("lpq_gptq_copy_columns", Dim3(blocks_for(exec, n * outer_width, 256)), Dim3(256), 0, p.t + outer,
                static_cast<int>(k), x.as<float>(), kOuterColumns, static_cast<int>(n), static_cast<int>(outer_width));
    Gemm update;
    update.m = n;
    update.lda = k;
    update.ldb = k;
    update.ldc = kOuterColumns;
    update.ab = DType::bf16;
    update.out = DType::f32;
    update.alpha = -1;
    update.beta = 1;
    if (outer > 0) {
      update.n = outer_width;
      update.k = outer;
      update.c = x.as<float>();
      multiply(exec, update, e, u.at(outer));
    }
    for (int64_t inner = 0; inner < outer_width; inner += kBlockColumns) {
      args.first = static_cast<int>(outer + inner);
      args.width = static_cast<int>(std::min<int64_t>(kBlockColumns, outer_width - inner));
      args.x = x.as<float>() + inner;
      if (inner > 0) {
        update.n = args.width;
        update.k = inner;
        update.c = args.x;
        multiply(exec, update, e.at(outer), u.at(outer * k + outer + inner));
      }
      launch_block(exec, "solve", args);
    }
  }
}

// A problem of a descent on its way: what its products and its walk read and write.
class Descent {
 public:
  Descent(CudaExec& exec, const ops::GptqDescend& of, size_t which, unsigned long long* moved)
      : exec_(exec),
        p_(read_problem(exec, of.problems[which])),
        planes_(of.passes == 3 ? 2 : 1),
        grid_(exec, p_),
        scaling_(exec, p_),
        blocks_(block_operands(exec, "descend", p_, scaling_.columns.as<int32_t>())),
        metric_(exec.scratch(static_cast<size_t>(p_.k * p_.k * planes_) * 2)),
        error_(exec.scratch(static_cast<size_t>(p_.n * p_.k * planes_) * 2)),
        delta_(exec.scratch(static_cast<size_t>(p_.n * kOuterColumns * planes_) * 2)),
        x_(exec.scratch(static_cast<size_t>(p_.n * kOuterColumns) * 4)) {
    const Planes e = split(error_, p_.n * p_.k);
    float* level = of.levels[which]->data<float>();
    scaled_metric(exec, p_.matrix, p_.k, scaling_.columns.as<int32_t>(), nullptr, p_.k, split(metric_, p_.k * p_.k));
    exec.launch("lpq_gptq_scaled_error", Dim3(p_.n), Dim3(256), 0, static_cast<const float*>(level), p_.t, p_.scale,
                p_.zero, p_.group, static_cast<int>(p_.groups), static_cast<int>(p_.k), scaling_.columns.as<int32_t>(),
                scaling_.rows.as<int32_t>(), e.hi, e.lo);
    args_.grid = grid_spec(of.type);
    args_.n = static_cast<int>(p_.n), args_.k = static_cast<int>(p_.k);
    args_.ldx = args_.ldd = kOuterColumns;
    grid_.give(args_, p_);
    args_.t = p_.t, args_.level = level;
    args_.blocks = blocks_.as<uint4>();
    args_.hi = e.hi, args_.lo = e.lo;
    args_.row_exponent = scaling_.rows.as<int32_t>();
    args_.moved = moved;
  }

  int64_t columns() const { return p_.k; }

  // A sweep over columns outer .. outer + 512.
  void walk(int64_t outer) {
    const Planes m = split(metric_, p_.k * p_.k), e = split(error_, p_.n * p_.k),
                 d = split(delta_, p_.n * kOuterColumns);
    const int64_t width = std::min<int64_t>(kOuterColumns, p_.k - outer);
    Gemm product;
    product.m = p_.n;
    product.ldb = p_.k;
    product.ldc = kOuterColumns;
    product.ab = DType::f16;
    product.out = DType::f32;
    product.transpose_b = true;  // the metric is symmetric: rows serve as columns
    product.n = width;
    product.k = p_.k;
    product.lda = p_.k;
    product.c = x_.as<float>();
    multiply(exec_, product, e, m.at(outer * p_.k));
    for (int64_t inner = 0; inner < width; inner += kBlockColumns) {
      args_.first = static_cast<int>(outer + inner);
      args_.width = static_cast<int>(std::min<int64_t>(kBlockColumns, width - inner));
      args_.x = x_.as<float>() + inner;
      args_.delta_hi = d.hi + inner;
      args_.delta_lo = d.lo ? d.lo + inner : nullptr;
      if (inner > 0) {
        product.n = args_.width;
        product.k = inner;
        product.lda = kOuterColumns;
        product.c = args_.x;
        product.beta = 1;
        multiply(exec_, product, d, m.at((outer + inner) * p_.k + outer));
      }
      launch_block(exec_, "descend", args_);
    }
  }

 private:
  Planes split(const Scratch& room, int64_t count) const {
    return {room.as<uint16_t>(), planes_ == 2 ? room.as<uint16_t>() + count : nullptr};
  }

  CudaExec& exec_;
  const Problem p_;
  const int64_t planes_;
  const Transposed grid_;
  const Scaling scaling_;
  const Scratch blocks_, metric_, error_, delta_, x_;
  BlockArgs args_{};
};

void descend(Call& call, CudaExec& exec) {
  const ops::GptqDescend of(call);
  Scratch moved = exec.scratch(8);
  exec.fill_zero(moved.as<void>(), 8);
  if (of.sweeps > 0) {
    std::deque<Descent> parts;
    int64_t most = 0;
    for (size_t i = 0; i < of.problems.size(); ++i)
      if (of.problems[i].n * of.problems[i].k > 0) {
        parts.emplace_back(exec, of, i, moved.as<unsigned long long>());
        most = std::max(most, parts.back().columns());
      }
    // A walk takes its columns one after the other, so problems side by side keep the device busy.
    Branches branches(exec, parts.size());
    for (int64_t sweep = 0; sweep < of.sweeps; ++sweep)
      for (int64_t outer = 0; outer < most; outer += kOuterColumns)
        for (size_t i = 0; i < parts.size(); ++i)
          if (outer < parts[i].columns()) branches.on(i, [&] { parts[i].walk(outer); });
  }
  exec.launch("lpq_gptq_count_to_f64", Dim3(1), Dim3(1), 0,
              static_cast<const unsigned long long*>(moved.as<unsigned long long>()), of.changed.data<double>());
}

LPQ_CUDA_OP(solve, "gptq_solve");
LPQ_CUDA_OP(descend, "gptq_descend");

}  // namespace
}  // namespace lpq::cuda::gptq
