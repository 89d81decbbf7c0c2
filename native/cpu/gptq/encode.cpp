// gptq_encode, gptq_store_scales: from the solver's floats to what is stored.
#include <cmath>

#include "cpu/quant/grid.h"
#include "cpu/quant/scale.h"
#include "ops/gptq.h"

namespace lpq::gptq {
namespace {

void encode(Call& call, Exec& exec) {
  const ops::GptqEncode a(call);
  const int64_t n = a.level.dim(0), k = a.level.dim(1);
  const float* level = a.level.data<float>();
  const int32_t* order = a.order.data<int32_t>();
  uint8_t* codes = a.codes.data<uint8_t>();
  with_grid(a.type, [&](const auto& grid) {
    const auto step = grid.step(1.0f, 0.0f);  // levels are grid points: rounding finds their codes exactly
    exec.pool.for_each(n, 32, [&](int64_t row) {
      for (int64_t j = 0; j < k; ++j)
        codes[row * k + order[j]] = static_cast<uint8_t>(grid.nearest(level[row * k + j], step).code);
    });
  });
}

void store_scales(Call& call, Exec&) {
  const ops::GptqStoreScales op(call);
  const int64_t count = op.scale.elements();
  const float *scale = op.scale.data<float>(), least = least_scale(op.stored.dtype);
  float* rounded = op.rounded.data<float>();
  double overflows = 0, underflows = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float x = scale[i] / op.unit;
    float held = write_number(op.stored.dtype, op.stored.raw(), i, x);
    // Never 0: the least subnormal of f16 instead.
    if (held == 0.0f && op.stored.dtype == DType::f16)
      held = write_number(op.stored.dtype, op.stored.raw(), i, std::copysign(0x1p-24f, x));
    overflows += !std::isfinite(held);
    underflows += std::fabs(x) < least && op.stored.dtype != DType::f8_e4m3;
    rounded[i] = held * op.unit;
  }
  op.info.data<double>()[0] = overflows;
  op.info.data<double>()[1] = underflows;
}

LPQ_OP(encode, "gptq_encode");
LPQ_OP(store_scales, "gptq_store_scales");

}  // namespace
}  // namespace lpq::gptq
