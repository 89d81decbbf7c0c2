// Scales: turned from [G, N] to the canonical [N, G], and moved between float types without losing a bit.
#include "cpu/verify/half.h"
#include "cpu/verify/wrong.h"

namespace lpq::verify {
namespace {

// y[j][i] = x[i][j] for a matrix of 16- or 32-bit elements.
void transpose(Call& call, Exec&) {
  const Tensor &x = call.input(0), &y = call.output(0);
  require(x.rank() == 2 && y.rank() == 2 && x.dtype == y.dtype && x.dim(0) == y.dim(1) && x.dim(1) == y.dim(0),
          "a transpose keeps the dtype and swaps the dimensions");
  const auto turn = [&](auto* out, const auto* in) {
    for (int64_t j = 0; j < y.dim(0); ++j)
      for (int64_t i = 0; i < x.dim(0); ++i) out[j * x.dim(0) + i] = in[i * x.dim(1) + j];
  };
  if (dtype_bytes(x.dtype) == 2) turn(reinterpret_cast<uint16_t*>(y.raw()), reinterpret_cast<const uint16_t*>(x.raw()));
  else if (dtype_bytes(x.dtype) == 4)
    turn(reinterpret_cast<uint32_t*>(y.raw()), reinterpret_cast<const uint32_t*>(x.raw()));
  else require(false, "elements of 2 or 4 bytes");
}
LPQ_OP(transpose, "verify_transpose");

// y = x between f16, bf16 and f32 where the value fits exactly; every other element is reported (row, column, bits of
// x). Without the exactness test a flipped low bit of a scale could round away and go unseen.
void convert_exact(Call& call, Exec&) {
  const Tensor &x = call.input(0), &y = call.output(0);
  require(x.rank() == 2 && x.shape == y.shape, "shapes are equal matrices");
  Wrong wrong;
  for (int64_t i = 0; i < x.elements(); ++i) {
    uint32_t bits = 0;
    float value = 0;
    if (x.dtype == DType::f32) {
      value = x.data<float>()[i];
      bits = std::bit_cast<uint32_t>(value);
    } else {
      bits = x.data<uint16_t>()[i];
      value =
          x.dtype == DType::f16 ? half_value(static_cast<uint16_t>(bits)) : bfloat_value(static_cast<uint16_t>(bits));
    }
    float back = value;
    if (y.dtype == DType::f32) {
      y.data<float>()[i] = value;
    } else {
      const bool half = y.dtype == DType::f16;
      const uint16_t narrow = half ? half_from_float(value) : bfloat_from_float(value);
      y.data<uint16_t>()[i] = narrow;
      back = half ? half_value(narrow) : bfloat_value(narrow);
    }
    // NaN is never a scale, so it counts as wrong here whatever its payload.
    if (std::bit_cast<uint32_t>(back) != std::bit_cast<uint32_t>(value) || std::isnan(value))
      wrong.see(i / x.dim(1), i % x.dim(1), bits, 0);
  }
  WrongReport report;
  report.merge(wrong);
  report.write(call.output(1));
}
LPQ_OP(convert_exact, "verify_convert_exact");

}  // namespace
}  // namespace lpq::verify
