// What turns pairs of large.cuh into weights: offsets, scales and shifts of a strip's rows in shared memory.
#pragma once
#include "cuda/gemm/dequant.cuh"
#include "cuda/gemm/families/large.h"
#include "cuda/numbers.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

// What turns pairs of row class r into weights: fma(fma(pair, gain, offset), scale, shift). Every thread makes those of
// one row of the strip for each 64 k ahead and leaves them in shared memory: offsets, scales and shifts of 256 rows,
// packed as scales are, of one group or two.
constexpr int kFactorRows = 512;                  // bytes of one of the three
constexpr int kFactorSlot = 2 * 3 * kFactorRows;  // of 64 k
static_assert(2 * kFactorSlot == kLargeFactors);

// Of row class r, zero point z, scale `scaled` (rounded to the type of x). False: z does not come off exactly, and the
// shift depends on the scale.
template <class Cast, bool BF>
__device__ __forceinline__ bool take_off(int r, float z, float scaled, uint32_t& offset, uint32_t& shift) {
  const float none = -Cast::bias() * (r & 2 ? (r & 1 ? Cast::ungain(3) : Cast::ungain(2))
                                            : (r & 1 ? Cast::ungain(1) : Cast::ungain(0))),
              whole = none - z;
  const bool exact =
      z == truncf(z) && fabsf(z) <= (BF ? 256.0f : 1024.0f) && to_float(from_float(whole, BF), BF) == whole;
  offset = from_float(exact ? whole : none, BF);
  shift = exact ? 0x8000u : from_float(-z * scaled, BF);
  return exact;
}

// Of a packed block and this lane's four rows, a pair of row classes in a word. The instructions take either half for
// both of theirs.
template <class Cast, bool BF>
struct RowFactors {
  uint2 offset, scale, shift;

  __device__ __forceinline__ void read(uint32_t from) {
    scale = ld_shared_v2(from);
    if constexpr (Cast::kSums) offset = ld_shared_v2(from + kFactorRows), shift = ld_shared_v2(from + 2 * kFactorRows);
  }
  template <int r>
  __device__ __forceinline__ uint32_t weights(uint32_t unpower, uint32_t pair) const {
    const uint32_t s = r < 2 ? scale.x : scale.y;
    if constexpr (Cast::kSums) {
      const uint32_t d = fma_x2_halves<BF, -1, r % 2>(
          pair, both(BF ? 0x3f80u - (Cast::shift(r) << 7) : 0x3c00u - (Cast::shift(r) << 10)),
          r < 2 ? offset.x : offset.y);
      return fma_x2_halves<BF, r % 2, r % 2>(d, s, r < 2 ? shift.x : shift.y);
    } else {
      const uint32_t d = BF ? pair : fma_x2<BF>(pair, unpower, 0x80008000u);
      return fma_x2_halves<BF, r % 2, -1>(d, s, 0x80008000u);
    }
  }
};

}  // namespace lpq::cuda
