// Codes to pairs of f16 or bf16 less their zero points, for the kernel of scaled weights.
#pragma once
#include <type_traits>

#include "cuda/gemm/dequant.cuh"
#include "cuda/gemm/families/packed.h"
#include "cuda/gemm/families/scaled.h"
#include "cuda/numbers.cuh"
#include "cuda/ptx/features.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// Pairs of weights from the words of a lane's chunk. Zeros: zero points that differ between groups or are no whole
// numbers.
template <int B, bool BF, bool Integer, bool Zeros>
struct ScaledCast {
  using Cast = std::conditional_t<Integer, IntCast<B, BF>, FloatCast<B, BF>>;
  static constexpr int kClass = Cast::kStarts == 1 ? 1 : 3;  // row classes r and r + 2 may be alike
  Cast cast;
  uint32_t magic[4];  // f16 integers: 1024 and the sign's bit where row class r has it
  uint32_t minus[4];  // integers: minus what the code comes with, and minus the constant zero point
  uint32_t power;     // f16 floats: 2^(15 - bias)

  // `unknown`: 0, which the compiler does not know: what it knows to be alike in all lanes it keeps apart, and copies
  // it for each use.
  __device__ __forceinline__ ScaledCast(const GemmPackedArgs& g, const ScaledArgs& a, uint32_t unknown)
      : cast(g.is_signed != 0, g.exponent) {
    if constexpr (Integer) {
      const float take = a.lift + (Zeros ? 0.0f : a.zero);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float part = 1.0f / static_cast<float>(1 << Cast::shift(r));
        magic[r] = twice(0x6400) ^ (B > 1 && g.is_signed ? twice(1u << (B - 1)) << Cast::shift(r) : 0);
        minus[r] = twice(from_float<BF>(-((BF ? Cast::bias() : 1024.0f) * part + take)));
        minus[r] ^= unknown, magic[r] ^= unknown;
      }
    } else if constexpr (!BF) {
      power = twice(from_float<false>(cast.unpower)) ^ unknown;
    }
  }

  // Code less zero point, or the float's value, of pair i of a chunk; exact but where `low` or fractions of zero points
  // are. `high` and
  // `low`: minus the zero point, in two parts.
  __device__ __forceinline__ uint32_t value(const uint32_t* q, int i, uint32_t high, uint32_t low) const {
    const int r = i & 3;
    if constexpr (!Integer) {
      const uint32_t v = cast.pair(q, i);
      return BF ? v : mul_x2<false>(v, power);
    } else {
      const int s = Cast::shift(r);
      uint32_t v;
      if constexpr (BF) {
        v = cast.pair(q, i);
      } else {
        using F = Fields<B>;
        const uint32_t moved_word = F::whole(i) ? moved(q[F::word(i)], F::offset(i) - s) : joined<B>(q, i, s);
        v = (moved_word & twice(((1u << B) - 1) << s)) ^ magic[r & kClass];
      }
      const uint32_t part = twice(BF ? static_cast<uint32_t>(127 - s) << 7 : static_cast<uint32_t>(15 - s) << 10);
      v = s == 0 ? add_x2<BF>(v, minus[r & kClass]) : fma_x2<BF>(v, part, minus[r & kClass]);
      if constexpr (Zeros) {
        v = add_x2<BF>(v, high);
        if constexpr (BF) v = add_x2<BF>(v, low);
      }
      return v;
    }
  }
};

#endif

}  // namespace lpq::cuda
