// gptq_clip. All candidates are tried, as on the CPU; their costs are computed on
// the tensor cores (clip.cu says how precisely).
#include <cmath>

#include "cuda/exec.h"
#include "cuda/gptq/clip.h"
#include "cuda/gptq/problem.h"
#include "cuda/gptq/sorted.h"
#include "cuda/quant/number.h"

namespace lpq::cuda::gptq {
namespace {

void clip(Call& call, CudaExec& exec) {
  const ops::GptqClip of(call);
  const Problem p = read_problem(exec, of.problem);
  const QuantType& type = of.type;
  ClipArgs args{};
  args.grid = grid_spec(type);
  args.n = static_cast<int>(p.n);
  args.groups = static_cast<int>(p.groups);
  args.scale = of.problem.scale.data<float>();
  args.zero = of.problem.zero.data<float>();
  args.symmetric = of.symmetric;
  args.both_signs = of.both_signs;
  args.constant_zero = of.constant_zero;
  args.steps = of.steps;
  args.shrink = of.shrink;
  args.scale_kind = of.scale_dtype == DType::f8_e8m0 ? 1 : of.scale_dtype == DType::f8_e4m3 ? 2 : 0;
  args.least_scale = args.scale_kind == 2 ? 0x1p-9f : least_scale(kNumberE8m0);  // e4m3 may go down to its subnormals
  args.low = args.grid.is_float ? -type.top() : args.grid.low;
  args.high = args.grid.is_float ? type.top() : args.grid.high;
  args.scale_unit = of.unit;
  args.candidates = args.steps * (args.symmetric && args.both_signs ? 2 : 1);
  if (p.n * p.groups == 0) return;

  const Sorted sorted(exec, p.group, p.k, p.groups);
  const int64_t tiles = sorted.piece / 16, words = tiles * (tiles + 1) / 2 * 128,
                pieces = p.groups * sorted.pieces_per_group;
  Scratch t = exec.scratch(static_cast<size_t>(p.n * sorted.columns) * 4),
          fragments = exec.scratch(static_cast<size_t>(pieces * words) * 4);
  Scratch weight = exec.scratch(static_cast<size_t>(pieces) * 4);
  const int staged = p.k * 4 <= exec.device().shared_per_block;
  exec.launch("lpq_gptq_gather_columns", Dim3(p.n), Dim3(256), staged ? static_cast<unsigned>(p.k * 4) : 0u, p.t,
              static_cast<int>(p.k), static_cast<const int32_t*>(sorted.members.as<int32_t>()),
              static_cast<int>(sorted.columns), t.as<float>(), staged);
  exec.launch("lpq_gptq_clip_fragments", Dim3(pieces), Dim3(256), 0, p.matrix, static_cast<int>(p.k),
              static_cast<const int32_t*>(sorted.members.as<int32_t>()), static_cast<int>(sorted.piece),
              fragments.as<uint32_t>(), weight.as<float>());
  args.columns = static_cast<int>(sorted.columns);
  args.pieces = static_cast<int>(sorted.pieces_per_group);
  args.t = t.as<float>();
  args.fragments = fragments.as<uint32_t>();
  args.weight = weight.as<float>();
  const bool paired =
      args.symmetric && args.both_signs && !args.grid.is_float && args.constant_zero == std::floor(args.constant_zero);
  const int mode = paired ? 0 : args.grid.is_float ? 2 : 1;
  const int64_t table =
      (int64_t{16} * (paired ? args.steps : 2 * args.candidates) + (args.pieces > 1 ? 16 * args.candidates : 0)) * 4;
  int64_t warps = 4;
  while (warps > 1 && words * 4 + warps * table > exec.device().shared_per_block) warps /= 2;
  require(words * 4 + warps * table <= exec.device().shared_per_block,
          "the clip search has too many steps for this device's shared memory");
  exec.launch("lpq_gptq_clip_" + std::to_string(tiles) + "_" + std::to_string(mode),
              Dim3((p.n + 16 * warps - 1) / (16 * warps), p.groups), Dim3(32 * warps),
              static_cast<unsigned>(words * 4 + warps * table), args);
}

LPQ_CUDA_OP(clip, "gptq_clip");

}  // namespace
}  // namespace lpq::cuda::gptq
