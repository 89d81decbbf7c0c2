// The CPU solves A s = b with A_gh = v_g M v_h^T, b_g = v_g M t. Here the same solution is reached by Newton's step
// from the present scales, A d = r with r = -v (What - T) M: r is small where s is good, so that operands of 11 bits
// (f16 in scaled units, block.h) cost r and A 2^-12 of themselves and the new scale about 1e-4 of the *step*, below
// what storing a scale as f16 costs. Codes are exact in f16. A is symmetric: half of it is computed.
#include "cuda/gptq/refit.h"

#include <optional>

#include "cuda/exec.h"
#include "cuda/gptq/problem.h"
#include "cuda/gptq/sorted.h"
#include "lpq/two_level.h"

namespace lpq::cuda::gptq {
namespace {

constexpr int64_t kProducts = int64_t{1} << 28;  // floats of A held at once

void refit(Call& call, CudaExec& exec) {
  const ops::GptqRefit of(call);
  const Tensor &level = of.level, &scale = of.problem.scale, &refitted = of.refitted;
  const Problem p = read_problem(exec, of.problem);
  const int64_t n = p.n, k = p.k;
  Scratch count = exec.scratch(8);
  exec.fill_zero(count.as<void>(), 8);
  if (n * k * p.groups > 0) {
    const Sorted sorted(exec, p.group, k, p.groups);
    const Scaling scaling(exec, p);
    const int64_t columns = sorted.columns, tiles = columns / 128, tile_pairs = tiles * (tiles + 1) / 2,
                  pieces = sorted.pieces();
    const auto* members = static_cast<const int32_t*>(sorted.members.as<int32_t>());
    const auto* column_exponent = static_cast<const int32_t*>(scaling.columns.as<int32_t>());
    const auto* row_exponent = static_cast<const int32_t*>(scaling.rows.as<int32_t>());
    const int ki = static_cast<int>(k), width = static_cast<int>(columns), groups = static_cast<int>(p.groups);
    Scratch codes = exec.scratch(static_cast<size_t>(n * columns) * 2),
            gradient = exec.scratch(static_cast<size_t>(n * columns) * 4);
    Scratch code_exponent = exec.scratch(static_cast<size_t>(n) * 4);
    Scratch fragments = exec.scratch(static_cast<size_t>(tile_pairs) * 32768);
    {
      Scratch metric = exec.scratch(static_cast<size_t>(columns * columns) * 2),
              errors = exec.scratch(static_cast<size_t>(n * columns) * 2);
      Scratch sorted_exponent = exec.scratch(static_cast<size_t>(columns) * 4);
      const auto* exponents = static_cast<const int32_t*>(sorted_exponent.as<int32_t>());
      exec.launch("lpq_gptq_gather_exponents", Dim3((columns + 255) / 256), Dim3(256), 0, column_exponent, members,
                  width, sorted_exponent.as<int32_t>());
      scaled_metric(exec, p.matrix, k, exponents, members, columns, {metric.as<uint16_t>(), nullptr});
      exec.launch("lpq_gptq_product_fragments", Dim3(tile_pairs), Dim3(256), 0,
                  static_cast<const uint16_t*>(metric.as<uint16_t>()), width, sorted.piece > 16 ? 1 : 0,
                  fragments.as<uint32_t>());
      const int staged = k * 8 <= exec.device().shared_per_block - 1024;
      exec.launch("lpq_gptq_refit_rows", Dim3(n), Dim3(512), staged ? static_cast<unsigned>(k * 8) : 0u,
                  static_cast<const float*>(level.data<float>()), p.t, p.scale, p.zero, groups,
                  static_cast<int>(sorted.pieces_per_group * sorted.piece), ki, members, width, exponents,
                  column_exponent + k, row_exponent, code_exponent.as<int32_t>(), codes.as<uint16_t>(),
                  errors.as<uint16_t>(), staged);
      Gemm product;
      product.m = n;
      product.n = product.k = columns;
      product.a = errors.as<void>();
      product.b = metric.as<void>();
      product.transpose_b = true;
      product.c = gradient.as<void>();
      product.ab = DType::f16;
      product.out = DType::f32;
      product.rows_alone = true;
      exec.gemm(product);
    }
    const int64_t pairs = pieces * (pieces + 1) / 2;
    const int64_t chunk = std::min(n, std::max<int64_t>(256, kProducts / pairs / 256 * 256));
    Scratch products = exec.scratch(static_cast<size_t>(pairs * chunk) * 4);
    RefitArgs args{};
    args.groups = groups;
    args.pieces_per_group = static_cast<int>(sorted.pieces_per_group);
    args.piece = static_cast<int>(sorted.piece);
    args.columns = width;
    args.codes = codes.as<uint16_t>();
    args.gradient = gradient.as<float>();
    args.products = products.as<float>();
    args.pairs = pairs;
    args.row_exponent = row_exponent;
    args.code_exponent = code_exponent.as<int32_t>();
    args.scale = scale.data<float>();
    args.refitted = count.as<unsigned long long>();
    std::optional<Scratch> solution, residual;
    if (of.two_level) {
      const size_t bytes = static_cast<size_t>(n * p.groups) * 4;
      solution.emplace(exec.scratch(bytes)), residual.emplace(exec.scratch(bytes));
      exec.fill_zero(solution->as<void>(), bytes);
      args.solution = solution->as<float>(), args.residual = residual->as<float>();
    }
    const int64_t triangle = p.groups * (p.groups + 1) / 2, vectors = 3 * p.groups + 8;
    const bool fits = (vectors + triangle) * 4 <= exec.device().shared_per_block;
    const unsigned shared = static_cast<unsigned>((fits ? vectors + triangle : vectors) * 4);
    const int64_t blocks = fits ? chunk : std::min<int64_t>(chunk, int64_t{exec.device().multiprocessors} * 4);
    Scratch room = exec.scratch(fits ? 16 : static_cast<size_t>(blocks * triangle) * 4);
    args.room = fits ? nullptr : room.as<float>();
    for (int64_t row0 = 0; row0 < n; row0 += chunk) {
      args.row0 = static_cast<int>(row0);
      args.rows = static_cast<int>(std::min(chunk, n - row0));
      exec.launch("lpq_gptq_products_" + std::to_string(sorted.piece / 16), Dim3((args.rows + 255) / 256, tiles),
                  Dim3(256), 65536, args.codes, width, args.row0, args.rows,
                  static_cast<const uint32_t*>(fragments.as<uint32_t>()), products.as<float>(), pairs);
      if (p.groups <= 128)
        exec.launch("lpq_gptq_refit_solve_" + std::to_string(p.groups <= 32   ? 2
                                                             : p.groups <= 64 ? 4
                                                                              : 8),
                    Dim3(args.rows), Dim3(256), static_cast<unsigned>(triangle * 4), args);
      else exec.launch("lpq_gptq_refit_solve", Dim3(std::min<int64_t>(blocks, args.rows)), Dim3(128), shared, args);
      if (of.two_level)
        exec.launch("lpq_gptq_refit_two_level", Dim3(args.rows), Dim3(128), static_cast<unsigned>(44 * p.groups), args,
                    of.dtype == DType::f16 ? TwoLevel::f16() : TwoLevel::f32());
    }
  }
  exec.launch("lpq_gptq_count_to_f64", Dim3(1), Dim3(1), 0,
              static_cast<const unsigned long long*>(count.as<unsigned long long>()), refitted.data<double>());
}

LPQ_CUDA_OP(refit, "gptq_refit");

}  // namespace
}  // namespace lpq::cuda::gptq
