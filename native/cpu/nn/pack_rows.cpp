// pack_rows, unpack_rows: activations as 16 bits with a scale for each row.
#include <algorithm>
#include <bit>

#include "lpq/checks.h"
#include "lpq/half.h"
#include "lpq/row_scale.h"
#include "ops/tokens.h"

namespace lpq::nn {
namespace {

void pack_rows(Call& call, Exec& exec) {
  const ops::PackRows a(call);
  const Tensor &x = a.x, &y = a.y, &scales = a.scales;
  const int64_t width = x.dim(1);
  const float* from = x.data<float>();
  uint16_t* to = y.data<uint16_t>();
  float* scale = scales.data<float>();
  exec.pool.for_each(x.dim(0), rows_grain(4 * width), [&](int64_t t) {
    const float* row = from + t * width;
    uint32_t largest = 0;
    for (int64_t c = 0; c < width; ++c) {
      const uint32_t bits = std::bit_cast<uint32_t>(row[c]) & 0x7fffffffu;
      largest = std::max(largest, finite_f32(bits) ? bits : 0u);
    }
    scale[t] = std::bit_cast<float>(row_scale_bits(largest));
    for (int64_t c = 0; c < width; ++c) {
      const uint32_t bits = std::bit_cast<uint32_t>(row[c]);
      to[t * width + c] = finite_f32(bits) ? f32_to_f16(row[c] * scale[t]) : special_to_f16(bits);
    }
  });
}

void unpack_rows(Call& call, Exec& exec) {
  const ops::UnpackRows a(call);
  const Tensor &x = a.x, &y = a.y, &scales = a.scales;
  const int64_t width = y.dim(1);
  const uint16_t* from = y.data<uint16_t>();
  const float* scale = scales.data<float>();
  float* to = x.data<float>();
  exec.pool.for_each(y.dim(0), rows_grain(2 * width), [&](int64_t t) {
    const float inverse = 1.0f / scale[t];  // a power of two, as the scale is
    for (int64_t i = t * width; i < (t + 1) * width; ++i)
      to[i] = finite_f16(from[i]) ? f16_to_f32(from[i]) * inverse : std::bit_cast<float>(special_to_f32(from[i]));
  });
}

}  // namespace
LPQ_OP(pack_rows, "pack_rows");
LPQ_OP(unpack_rows, "unpack_rows");
}  // namespace lpq::nn
