// tune_aim, tune_grid, tune_scale_gradient, tune_gain_gradient, tune_adam, tune_row_dots, tune_refit_grid.
#include "ops/tune.h"

#include <cmath>

#include "cuda/launch.h"
#include "cuda/quant/number.h"

namespace lpq::cuda {
namespace {

void aim(Call& call, CudaExec& exec) {
  const ops::TuneAim a(call);
  const int k = static_cast<int>(a.p.dim(1)), groups = static_cast<int>(a.scale.dim(1));
  exec.launch("lpq_tune_aim", {a.p.dim(0)}, {512}, 0, a.p.data<float>(), a.w.data<float>(), a.scale.data<float>(),
              a.t.data<float>(), a.most.data<float>(), k, groups, a.rate, a.leak);
}

void grid(Call& call, CudaExec& exec) {
  const ops::TuneGrid a(call);
  const long long count = a.s.elements();
  const int dtype = number_type(a.stored.dtype);
  const float least = a.type.min_value(), highest = a.type.max_value();
  exec.launch("lpq_tune_grid", {stride_blocks(exec, count, 256)}, {256}, 0, a.s.data<float>(), a.f.data<float>(),
              a.z.data<float>(), a.e.data<float>(), reinterpret_cast<uint8_t*>(a.stored.raw()), dtype,
              a.scale.data<float>(), a.zero.data<float>(), a.unit, least, highest, count);
}

void scale_gradient(Call& call, CudaExec& exec) {
  const ops::TuneScaleGradient a(call);
  const long long groups = a.of.n * a.of.groups;
  const int length = static_cast<int>(a.of.length);
  exec.launch("lpq_tune_scale_gradient", {div_up(groups, 8)}, {32, 8}, 0, a.dw.data<float>(), a.w.data<float>(),
              a.f.data<float>(), a.g.data<float>(), length, groups);
}

void gain_gradient(Call& call, CudaExec& exec) {
  const ops::TuneGainGradient a(call);
  const int rows = static_cast<int>(a.x.dim(0)), width = static_cast<int>(a.x.dim(1));
  if (rows == 0 || width == 0) return;
  const int piece = 64, pieces = static_cast<int>(div_up(rows, piece));
  const Scratch parts = exec.scratch(static_cast<size_t>(pieces) * static_cast<size_t>(width) * 8);
  exec.launch("lpq_tune_gain_parts", {div_up(width, 128), pieces}, {128}, 0, a.x.data<float>(), a.dy.data<float>(),
              parts.as<double>(), rows, width, piece);
  exec.launch("lpq_tune_gain_sum", {div_up(width, 128)}, {128}, 0, static_cast<const double*>(parts.as<double>()),
              pieces, a.gain.data<float>(), a.g.data<float>(), width);
}

void adam(Call& call, CudaExec& exec) {
  const ops::TuneAdam a(call);
  const long long count = a.f.elements();
  const double steps = static_cast<double>(a.step), of_m = 1 / (1 - std::pow(a.beta1, steps)),
               of_v = 1 / (1 - std::pow(a.beta2, steps));
  exec.launch("lpq_tune_adam", {stride_blocks(exec, count, 256)}, {256}, 0, a.f.data<float>(), a.g.data<float>(),
              a.m.data<float>(), a.v.data<float>(), a.rate, a.beta1, a.beta2, a.eps, of_m, of_v, a.least, a.most,
              count);
}

void row_dots(Call& call, CudaExec& exec) {
  const ops::TuneRowDots a(call);
  const int width = static_cast<int>(a.x.dim(1));
  exec.launch("lpq_tune_row_dots", {a.x.dim(0)}, {256}, 0, a.x.data<float>(), a.y.data<float>(), a.dots.data<double>(),
              width);
}

// What groups before change (W - T) M of a group's columns by is a product with what they changed weights by.
void refit_grid(Call& call, CudaExec& exec) {
  const ops::TuneRefitGrid a(call);
  const int64_t n = a.of.n, width = a.of.k;
  const int k = static_cast<int>(width), length = static_cast<int>(a.of.length), groups = static_cast<int>(a.of.groups),
            rows = static_cast<int>(n), dtype = number_type(a.dtype), zeros = a.zeros;
  const float least = a.type.min_value(), highest = a.type.max_value();
  const Scratch ones = exec.scratch(static_cast<size_t>(k) * 8),
                off = exec.scratch(static_cast<size_t>(n * length) * 4),
                by = exec.scratch(static_cast<size_t>(n * width) * 4), moved = exec.scratch(static_cast<size_t>(n) * 4);
  exec.fill_zero(moved.as<void>(), moved.bytes());
  exec.launch("lpq_tune_group_sums", {div_up(k, 8)}, {32, 8}, 0, a.m.data<float>(), ones.as<double>(), k, length);
  for (int group = 0; group < groups; ++group) {
    const int64_t first = static_cast<int64_t>(group) * length;
    exec.launch("lpq_gptq_copy_columns", {stride_blocks(exec, n * length, 256)}, {256}, 0,
                static_cast<const float*>(a.r.data<float>() + first), k, off.as<float>(), length, rows, length);
    if (group > 0) {
      Gemm product;
      product.m = n, product.n = length, product.k = first;
      product.a = by.as<float>(), product.lda = width;
      product.b = a.m.data<float>() + first, product.ldb = width;
      product.c = off.as<float>(), product.ldc = length;
      product.beta = 1;
      exec.gemm(product);
    }
    exec.launch("lpq_tune_refit_group", {n}, {128}, static_cast<unsigned>(4 * length),
                static_cast<const float*>(off.as<float>()), a.m.data<float>(),
                static_cast<const double*>(ones.as<double>()), a.level.data<float>(), a.scale.data<float>(),
                a.zero.data<float>(), by.as<float>(), moved.as<uint32_t>(), k, length, groups, group, dtype, a.unit,
                zeros, least, highest);
  }
  exec.launch("lpq_tune_count", {1}, {256}, 0, static_cast<const uint32_t*>(moved.as<uint32_t>()), rows,
              a.moved.data<double>());
}

}  // namespace
LPQ_CUDA_OP(aim, "tune_aim");
LPQ_CUDA_OP(grid, "tune_grid");
LPQ_CUDA_OP(scale_gradient, "tune_scale_gradient");
LPQ_CUDA_OP(gain_gradient, "tune_gain_gradient");
LPQ_CUDA_OP(adam, "tune_adam");
LPQ_CUDA_OP(row_dots, "tune_row_dots");
LPQ_CUDA_OP(refit_grid, "tune_refit_grid");
}  // namespace lpq::cuda
