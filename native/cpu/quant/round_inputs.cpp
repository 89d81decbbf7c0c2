// round_inputs: what a linear reads whose activations are of a type of few bits.
#include <atomic>
#include <vector>

#include "cpu/quant/rtn_kernels.h"
#include "lpq/checks.h"
#include "ops/quant.h"

namespace lpq {
namespace {

void round_inputs(Call& call, Exec& exec) {
  const ops::RoundInputs a(call);
  const QuantType& type = a.type;
  const int64_t rows = a.x.dim(0), k = a.x.dim(1), length = a.length, groups = a.groups;
  ScaleRule rule(type, a.dtype);
  rule.global = a.global, rule.has_global = a.global != 1;
  const RtnKernels& run = rtn_kernels();
  const bool integer = type.kind == QuantType::Kind::integer;
  std::vector<float> values(type.codes());
  for (uint32_t code = 0; code < type.codes(); ++code) values[code] = type.decode(code);
  const float* from = a.x.data<float>();
  float* to = a.y.data<float>();
  std::atomic<bool> bad{false};
  exec.pool.parallel_for(rows, rows_grain(8 * k), [&](int64_t begin, int64_t end, int) {
    std::vector<uint8_t> codes(static_cast<size_t>(k));
    std::vector<Extent> extents(static_cast<size_t>(groups));
    std::vector<ScaleChoice> choices(static_cast<size_t>(groups));
    RtnSums sums;
    for (int64_t t = begin; t < end; ++t) {
      const float* row = from + t * k;
      if (!run.extents(row, groups, length, extents.data())) {
        bad = true;
        continue;
      }
      for (int64_t g = 0; g < groups; ++g) choices[g] = rule.choose(extents[g]);
      const RtnRow job{row, groups, length, choices.data(), rule.global, codes.data(), &sums};
      if (integer) run.round_integer(IntGrid(type), job);
      else run.round_float(FloatGrid(type), job);
      for (int64_t g = 0; g < groups; ++g) {
        const float scale = choices[g].codes;
        for (int64_t i = g * length; i < (g + 1) * length; ++i) to[t * k + i] = values[codes[i]] * scale;
      }
    }
  });
  if (bad) throw Failure("LPQ_NATIVE_NUMERICS", "activations hold NaN or infinity");
}

LPQ_OP(round_inputs, "round_inputs");

}  // namespace
}  // namespace lpq
