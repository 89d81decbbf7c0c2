// From the solver's floats to what is stored.
//
//   gptq_encode        in: level f32 [N,K] (solving order), order I32 [K]; out: codes U8 [N,K], original order, raw bit
//                      patterns; params: the type
//   gptq_store_scales  in: scale f32 [N,G]; out: stored [N,G] f32|f16|bf16|f8_e8m0|f8_e4m3, scale f32 [N,G] as stored
//                      (times unit), info f64 [2] = {overflows, underflows}: scales that became infinite, or lie
//                      below what the dtype holds precisely (cpu/quant/scale.h); params: unit (global factor)
#include <cmath>

#include "cpu/quant/grid.h"
#include "cpu/quant/scale.h"
#include "lpq/exec.h"

namespace lpq::gptq {
namespace {

void encode(Call& call, Exec& exec) {
  const Tensor &level_in = call.input(0), &order_in = call.input(1);
  Tensor codes_out = call.output(0);
  require(level_in.rank() == 2 && codes_out.shape == level_in.shape, "level and codes must be [N,K]");
  const int64_t n = level_in.dim(0), k = level_in.dim(1);
  require(order_in.elements() == k, "order must be [K]");
  const float* level = level_in.data<float>();
  const int32_t* order = order_in.data<int32_t>();
  uint8_t* codes = codes_out.data<uint8_t>();
  with_grid(QuantType::from(call.params), [&](const auto& grid) {
    const auto step = grid.step(1.0f, 0.0f);  // levels are grid points: rounding finds their codes exactly
    exec.pool.parallel_for(n, 32, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row)
        for (int64_t j = 0; j < k; ++j)
          codes[row * k + order[j]] = static_cast<uint8_t>(grid.nearest(level[row * k + j], step).code);
    });
  });
}

void store_scales(Call& call, Exec&) {
  const Tensor& scale_in = call.input(0);
  Tensor stored = call.output(0), rounded_out = call.output(1), info_out = call.output(2);
  const int64_t count = scale_in.elements();
  require(stored.elements() == count && rounded_out.elements() == count && info_out.elements() == 2,
          "gptq_store_scales: shapes disagree");
  require(is_scale_dtype(stored.dtype), "scales cannot be stored as " + std::string(dtype_name(stored.dtype)));
  const float* scale = scale_in.data<float>();
  float* rounded = rounded_out.data<float>();
  const float unit = static_cast<float>(call.params.number("unit", 1.0));
  const float least = least_scale(stored.dtype);
  double overflows = 0, underflows = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float x = scale[i] / unit;
    float held = write_number(stored.dtype, stored.raw(), i, x);
    // Never 0: the least subnormal of f16 instead.
    if (held == 0.0f && stored.dtype == DType::f16)
      held = write_number(stored.dtype, stored.raw(), i, std::copysign(0x1p-24f, x));
    overflows += !std::isfinite(held);
    underflows += std::fabs(x) < least && stored.dtype != DType::f8_e4m3;
    rounded[i] = held * unit;
  }
  info_out.data<double>()[0] = overflows;
  info_out.data<double>()[1] = underflows;
}

LPQ_OP(encode, "gptq_encode");
LPQ_OP(store_scales, "gptq_store_scales");

}  // namespace
}  // namespace lpq::gptq
