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

void descend(Call& call, CudaExec& exec) {
  const ops::GptqDescend of(call);
  const Problem p = read_problem(exec, of.problem);
  const Tensor &level = of.level, &changed = of.changed;
  const int64_t sweeps = of.sweeps, passes = of.passes;
  const int64_t n = p.n, k = p.k, area = n * k, planes = passes == 3 ? 2 : 1;
  Scratch moved = exec.scratch(8);
  exec.fill_zero(moved.as<void>(), 8);
  if (area > 0 && sweeps > 0) {
    const Transposed grid(exec, p);
    const Scaling scaling(exec, p);
    Scratch metric = exec.scratch(static_cast<size_t>(k * k * planes) * 2),
            error = exec.scratch(static_cast<size_t>(area * planes) * 2);
    Scratch delta = exec.scratch(static_cast<size_t>(n * kOuterColumns * planes) * 2),
            x = exec.scratch(static_cast<size_t>(n * kOuterColumns) * 4);
    const auto split = [&](const Scratch& room, int64_t count) {
      return Planes{room.as<uint16_t>(), passes == 3 ? room.as<uint16_t>() + count : nullptr};
    };
    const Planes m = split(metric, k * k), e = split(error, area), d = split(delta, n * kOuterColumns);
    const int ki = static_cast<int>(k), groups = static_cast<int>(p.groups);
    scaled_metric(exec, p.matrix, k, scaling.columns.as<int32_t>(), nullptr, k, m);
    exec.launch("lpq_gptq_scaled_error", Dim3(n), Dim3(256), 0, static_cast<const float*>(level.data<float>()), p.t,
                p.scale, p.zero, p.group, groups, ki, scaling.columns.as<int32_t>(), scaling.rows.as<int32_t>(), e.hi,
                e.lo);
    BlockArgs args{};
    args.grid = grid_spec(of.type);
    args.n = static_cast<int>(n);
    args.k = ki;
    args.x = x.as<float>();
    args.ldx = kOuterColumns;
    grid.give(args, p);
    args.t = p.t;
    args.level = level.data<float>();
    const Scratch blocks = block_operands(exec, "descend", p, scaling.columns.as<int32_t>());
    args.blocks = blocks.as<uint4>();
    args.hi = e.hi;
    args.lo = e.lo;
    args.ldd = kOuterColumns;
    args.row_exponent = scaling.rows.as<int32_t>();
    args.moved = moved.as<unsigned long long>();
    for (int64_t sweep = 0; sweep < sweeps; ++sweep)
      for (int64_t outer = 0; outer < k; outer += kOuterColumns) {
        const int64_t outer_width = std::min<int64_t>(kOuterColumns, k - outer);
        Gemm product;
        product.m = n;
        product.ldb = k;
        product.ldc = kOuterColumns;
        product.ab = DType::f16;
        product.out = DType::f32;
        product.transpose_b = true;  // the metric is symmetric: rows serve as columns
        product.n = outer_width;
        product.k = k;
        product.lda = k;
        product.c = x.as<float>();
        multiply(exec, product, e, m.at(outer * k));
        for (int64_t inner = 0; inner < outer_width; inner += kBlockColumns) {
          args.first = static_cast<int>(outer + inner);
          args.width = static_cast<int>(std::min<int64_t>(kBlockColumns, outer_width - inner));
          args.x = x.as<float>() + inner;
          args.delta_hi = d.hi + inner;
          args.delta_lo = d.lo ? d.lo + inner : nullptr;
          if (inner > 0) {
            product.n = args.width;
            product.k = inner;
            product.lda = kOuterColumns;
            product.c = args.x;
            product.beta = 1;
            multiply(exec, product, d, m.at((outer + inner) * k + outer));
          }
          launch_block(exec, "descend", args);
        }
      }
  }
  exec.launch("lpq_gptq_count_to_f64", Dim3(1), Dim3(1), 0,
              static_cast<const unsigned long long*>(moved.as<unsigned long long>()), changed.data<double>());
}

LPQ_CUDA_OP(solve, "gptq_solve");
LPQ_CUDA_OP(descend, "gptq_descend");

}  // namespace
}  // namespace lpq::cuda::gptq
