#include <cmath>
#include <cstring>

#include "lpq/half.h"
#include "ops/quant.h"

namespace lpq {
namespace {

float weight_at(const Tensor& w, int64_t i) {
  float value;
  if (w.dtype == DType::f32) {
    std::memcpy(&value, w.raw() + i * 4, 4);  // a mapped tensor may start at any byte
    return value;
  }
  uint16_t half;
  std::memcpy(&half, w.raw() + i * 2, 2);
  return w.dtype == DType::f16 ? f16_to_f32(half) : bf16_to_f32(half);
}

void prune_magnitude(Call& call, Exec& exec) {
  const ops::PruneMagnitude a(call);
  const Tensor &w = a.w, &pruned = a.pruned, &mask = a.mask;
  const int64_t n = w.dim(0), k = w.dim(1), row_bytes = mask.dim(1);
  exec.pool.for_each(n, 16, [&](int64_t row) {
    uint8_t* bits = mask.data<uint8_t>() + row * row_bytes;
    std::memset(bits, 0, static_cast<size_t>(row_bytes));
    for (int64_t j = 0; j < k; j += 4) {
      float x[4];
      bool finite = true;
      for (int c = 0; c < 4; ++c) {
        x[c] = weight_at(w, row * k + j + c);
        finite = finite && std::isfinite(x[c]);
      }
      for (int c = 0; c < 4; ++c) {
        int ahead = 0;
        for (int d = 0; d < 4; ++d)
          ahead += std::fabs(x[d]) > std::fabs(x[c]) || (d < c && std::fabs(x[d]) == std::fabs(x[c]));
        const bool kept = finite ? ahead < 2 : c < 2;
        pruned.data<float>()[row * k + j + c] = kept || !finite ? x[c] : 0.0f;
        if (kept) bits[(j + c) >> 3] = static_cast<uint8_t>(bits[(j + c) >> 3] | 1 << ((j + c) & 7));
      }
    }
  });
}

LPQ_OP(prune_magnitude, "prune_magnitude");

}  // namespace
}  // namespace lpq
