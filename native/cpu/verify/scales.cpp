// Scales: turned from [G, N] to the canonical [N, G], and moved between float types without losing a bit.
#include <cstring>

#include "cpu/verify/half.h"
#include "cpu/verify/wrong.h"

namespace lpq::verify {
namespace {

// y[j][i] = x[i][j] for a matrix of 16- or 32-bit elements.
void transpose(Call& call, Exec&) {
  Arguments a(call, "verify_transpose");
  const Tensor& x = a.input("x", {-1, -1});
  const Tensor& y = a.output("y", {x.dtype}, {x.dim(1), x.dim(0)});
  a.done();
  const size_t bytes = dtype_bytes(x.dtype);
  require(bytes == 2 || bytes == 4, "elements of 2 or 4 bytes");
  for (int64_t j = 0; j < y.dim(0); ++j)
    for (int64_t i = 0; i < x.dim(0); ++i)
      std::memcpy(y.raw() + (j * x.dim(0) + i) * bytes, x.raw() + (i * x.dim(1) + j) * bytes, bytes);
}
LPQ_OP(transpose, "verify_transpose");

// y = x between f16, bf16 and f32 where the value fits exactly; every other element is reported (row, column, bits of
// x). Without the exactness test a flipped low bit of a scale could round away and go unseen.
void convert_exact(Call& call, Exec&) {
  Arguments a(call, "verify_convert_exact");
  const Tensor& x = a.input("x", {DType::f32, DType::f16, DType::bf16}, {-1, -1});
  const Tensor& y = a.output("y", {DType::f32, DType::f16, DType::bf16}, x.shape);
  const Tensor& info = report_output(a, "info");
  a.done();
  WrongReport report;
  Wrong wrong;
  for (int64_t i = 0; i < x.elements(); ++i) {
    const float value = float_at(x, i);
    store_float(y, i, value);
    // NaN is never a scale, so it counts as wrong here whatever its payload.
    if (std::bit_cast<uint32_t>(float_at(y, i)) != std::bit_cast<uint32_t>(value) || std::isnan(value))
      wrong.see(i / x.dim(1), i % x.dim(1), bits_at(x, i), 0);
  }
  report.merge(wrong);
  report.write(info);
}
LPQ_OP(convert_exact, "verify_convert_exact");

}  // namespace
}  // namespace lpq::verify
