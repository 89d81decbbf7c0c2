// round_inputs: the CPU's bytes.
#include "cuda/quant/round_inputs.h"

#include <algorithm>
#include <cmath>

#include "cuda/launch.h"
#include "cuda/quant/number.h"
#include "ops/quant.h"

namespace lpq::cuda {
namespace {

void round_inputs(Call& call, CudaExec& exec) {
  const ops::RoundInputs a(call);
  const QuantType& type = a.type;
  if (std::find(ops::kScaleTypes.begin(), ops::kScaleTypes.end(), a.dtype) == ops::kScaleTypes.end())
    throw Failure("LPQ_NATIVE_DTYPE", "scales are not stored as " + std::string(dtype_name(a.dtype)));
  require(a.length < int64_t{1} << 31, "groups have 2^31 columns or more");
  RoundInputsArgs args{};
  args.rule.grid = grid_spec(type);
  args.rule.scale_type = number_type(a.dtype);
  args.rule.zero_kind = kZeroConstant;
  args.rule.levels = static_cast<float>(type.codes() - 1u);
  args.rule.least_scale = least_scale(args.rule.scale_type);
  args.rule.top = args.rule.scale_type == kNumberE8m0 ? type.max_value() : type.top();
  args.rule.top_power = type.kind == QuantType::Kind::integer ? type.bits - 2 : std::ilogb(type.max_value());
  args.rule.has_global = a.global != 1;
  args.x = a.x.data<float>();
  args.y = a.y.data<float>();
  args.groups = a.x.dim(0) * a.groups;
  args.length = static_cast<int>(a.length);
  args.global = a.global;
  const bool held = (args.length == 4 || args.length == 8 || args.length == 16 || args.length == 32 ||
                     args.length == 64 || args.length == 128) &&
                    fours(a.x) && fours(a.y);
  args.team = held ? args.length / 4 : 0;
  args.fault = exec.fault("LPQ_NATIVE_NUMERICS", "activations hold NaN or infinity");
  exec.launch("lpq_round_inputs", {stride_blocks(exec, args.groups * (held ? args.team : 32), 256)}, {256}, 0, args);
}

LPQ_CUDA_OP(round_inputs, "round_inputs");

}  // namespace
}  // namespace lpq::cuda
