// prune_magnitude: of every four neighbours of a row the two largest stay (2:4), whatever the input.
//
//   in:  W [N,K] f32|f16|bf16, owned or mapped, K % 4 == 0
//   out: V f32 [N,K], 0 where pruned; mask U8 [N, ceil(K/8)], bit k of a row is 1 where the weight stays
//
// Of equal magnitudes the one further left stays. Four neighbours of which one is NaN or infinite are as they were in
// V, so that whoever rounds it finds them; the mask then names the first two.
#include <cmath>
#include <cstring>

#include "lpq/exec.h"
#include "lpq/half.h"

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
  const Tensor &w = call.input(0), &pruned = call.output(0), &mask = call.output(1);
  require(w.rank() == 2 && pruned.shape == w.shape && pruned.dtype == DType::f32, "W and V must be [N,K], V f32");
  require(w.dtype == DType::f32 || w.dtype == DType::f16 || w.dtype == DType::bf16, "W must be f32, f16 or bf16");
  const int64_t n = w.dim(0), k = w.dim(1), row_bytes = (k + 7) / 8;
  require(k % 4 == 0, "2:4 needs K divisible by 4");
  require(mask.dtype == DType::u8 && mask.shape == std::vector<int64_t>({n, row_bytes}),
          "mask must be u8 [N, ceil(K/8)]");
  exec.pool.parallel_for(n, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
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
    }
  });
}

LPQ_OP(prune_magnitude, "prune_magnitude");

}  // namespace
}  // namespace lpq
