#include "cpu/nn/cast.h"

#include <algorithm>
#include <cmath>

#include "lpq/half.h"
#include "ops/elementwise.h"

namespace lpq::nn {
namespace {

// f64 -> f32 rounded to odd: what is cut off leaves its trace in the last bit, so that rounding on to 16 bits is exact.
float to_odd(double value) {
  const float near = static_cast<float>(value);
  if (static_cast<double>(near) == value || value != value) return near;
  uint32_t bits = std::bit_cast<uint32_t>(near);
  if (std::fabs(static_cast<double>(near)) > std::fabs(value)) --bits;
  return std::bit_cast<float>(bits | 1u);
}

void from_f32(const float* x, DType to, std::byte* y, int64_t n) {
  const auto& kernels = vector_kernels();
  if (to == DType::f32) std::memcpy(y, x, static_cast<size_t>(n) * 4);
  else if (to == DType::f16) kernels.narrow_f16(x, reinterpret_cast<uint16_t*>(y), n);
  else if (to == DType::bf16) kernels.narrow_bf16(x, reinterpret_cast<uint16_t*>(y), n);
  else
    for (int64_t i = 0; i < n; ++i) reinterpret_cast<double*>(y)[i] = x[i];
}

void cast(Call& call, Exec& exec) {
  const ops::Cast a(call);
  const Tensor &x = a.x, &y = a.y;
  const int64_t from_bytes = static_cast<int64_t>(dtype_bytes(x.dtype)),
                to_bytes = static_cast<int64_t>(dtype_bytes(y.dtype));
  exec.pool.parallel_for(x.elements(), 1 << 16, [&](int64_t begin, int64_t end, int) {
    constexpr int64_t kPiece = 1024;
    float piece[kPiece];
    for (int64_t i = begin; i < end; i += kPiece) {
      const int64_t n = std::min(kPiece, end - i);
      const std::byte* from = x.raw() + i * from_bytes;
      std::byte* to = y.raw() + i * to_bytes;
      if (x.dtype == y.dtype) {
        std::memmove(to, from, static_cast<size_t>(n * to_bytes));
      } else if (x.dtype == DType::f64) {
        double wide[kPiece];
        std::memcpy(wide, from, static_cast<size_t>(n) * 8);
        for (int64_t j = 0; j < n; ++j)
          piece[j] = y.dtype == DType::f32 ? static_cast<float>(wide[j]) : to_odd(wide[j]);
        from_f32(piece, y.dtype, to, n);
      } else if (x.dtype == DType::i32) {
        int32_t whole[kPiece];
        std::memcpy(whole, from, static_cast<size_t>(n) * 4);
        for (int64_t j = 0; j < n; ++j) reinterpret_cast<float*>(to)[j] = static_cast<float>(whole[j]);
      } else {
        widen(x, i, n, piece);
        from_f32(piece, y.dtype, to, n);
      }
    }
  });
}

void zero(Call& call, Exec& exec) {
  const Tensor& y = ops::Zero(call).y;
  exec.pool.parallel_for(static_cast<int64_t>(y.bytes()), 1 << 20, [&](int64_t begin, int64_t end, int) {
    std::memset(y.raw() + begin, 0, static_cast<size_t>(end - begin));
  });
}

}  // namespace
LPQ_OP(cast, "cast");
LPQ_OP(zero, "zero");
}  // namespace lpq::nn
