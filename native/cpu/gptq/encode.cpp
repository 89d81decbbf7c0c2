// From the solver's floats to what is stored.
//
//   gptq_encode        in: level f32 [N,K] (solving order), order I32 [K]; out: codes U8 [N,K], original order, raw bit
//                      patterns; params: the type
//   gptq_store_scales  in: scale f32 [N,G]; out: stored [N,G] f32|f16|bf16|f8_e8m0|f8_e4m3, scale f32 [N,G] as stored
//                      (times unit), info f64 [2] = {overflows, underflows}: scales that became infinite, or zero or
//                      subnormal; params: unit (global factor)
#include <cmath>
#include <cstring>

#include "cpu/quant/grid.h"
#include "lpq/exec.h"
#include "lpq/half.h"

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
        for (int64_t j = 0; j < k; ++j) codes[row * k + order[j]] = static_cast<uint8_t>(grid.nearest(level[row * k + j], step).code);
    });
  });
}

float decode_e4m3(uint8_t code) {
  const int exponent = (code >> 3) & 15, fraction = code & 7;
  const float magnitude = exponent ? std::ldexp(static_cast<float>(8 + fraction), exponent - 10) : std::ldexp(static_cast<float>(fraction), -9);
  return code & 0x80 ? -magnitude : magnitude;
}

uint8_t encode_e4m3(float x) {
  float magnitude = std::fmin(std::fabs(x), 448.0f);
  int power = 0;
  if (magnitude > 0) std::frexp(magnitude, &power);
  const int binade = std::max(power - 1, -6);
  // Up to 16 eighths: a carry into the next binade is the right code by itself.
  const int eighths = magnitude > 0 ? static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - binade))) : 0;
  const int code = std::min(eighths < 8 ? eighths : (binade + 7) * 8 + (eighths - 8), 0x7e);
  return static_cast<uint8_t>(code | (std::signbit(x) ? 0x80 : 0));
}

void store_scales(Call& call, Exec&) {
  const Tensor& scale_in = call.input(0);
  Tensor stored = call.output(0), rounded_out = call.output(1), info_out = call.output(2);
  const int64_t count = scale_in.elements();
  require(stored.elements() == count && rounded_out.elements() == count && info_out.elements() == 2, "gptq_store_scales: shapes disagree");
  const float* scale = scale_in.data<float>();
  float* rounded = rounded_out.data<float>();
  const float unit = static_cast<float>(call.params.number("unit", 1.0));
  double overflows = 0, underflows = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float x = scale[i] / unit;
    float y = x, smallest = 1.17549435e-38f;
    switch (stored.dtype) {
      case DType::f32: stored.data<float>()[i] = x; break;
      case DType::f16: {
        const uint16_t h = f32_to_f16(x);
        stored.data<uint16_t>()[i] = h;
        y = f16_to_f32(h);
        smallest = 6.103515625e-05f;
        break;
      }
      case DType::bf16: {
        const uint16_t h = f32_to_bf16(x);
        stored.data<uint16_t>()[i] = h;
        y = bf16_to_f32(h);
        break;
      }
      case DType::f8_e8m0: {
        const int power = x > 0 ? static_cast<int>(std::nearbyint(std::log2(x))) : -127;
        const int code = std::min(std::max(power + 127, 0), 254);
        stored.data<uint8_t>()[i] = static_cast<uint8_t>(code);
        y = std::ldexp(1.0f, code - 127);
        smallest = 0;
        break;
      }
      case DType::f8_e4m3: {
        const uint8_t code = encode_e4m3(x);
        stored.data<uint8_t>()[i] = code;
        y = decode_e4m3(code);
        smallest = 0;
        break;
      }
      default: throw Failure("LPQ_NATIVE_DTYPE", "scales cannot be stored as " + std::string(dtype_name(stored.dtype)));
    }
    overflows += !std::isfinite(y);
    underflows += x != 0 && std::fabs(y) < smallest;
    rounded[i] = y * unit;
  }
  info_out.data<double>()[0] = overflows;
  info_out.data<double>()[1] = underflows;
}

LPQ_OP(encode, "gptq_encode");
LPQ_OP(store_scales, "gptq_store_scales");

}  // namespace
}  // namespace lpq::gptq
