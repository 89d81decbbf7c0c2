// Pairs of activations in f16 or bf16: their sums, and f16 as two parts in bf16, exactly (11 bits are 8 and 3).
#pragma once
#include "cuda/gemm/dequant_chunk.cuh"
#include "cuda/numbers.cuh"

namespace lpq::cuda {

template <bool BF>
__device__ __forceinline__ float sum_of_pair(uint32_t pair) {
  return BF ? __uint_as_float(pair << 16) + __uint_as_float(pair & 0xffff0000u)
            : __low2float(*reinterpret_cast<const __half2*>(&pair)) +
                  __high2float(*reinterpret_cast<const __half2*>(&pair));
}

// Far: times 2^kFarPower.
template <bool Far>
__device__ __forceinline__ void split_pair(uint32_t pair, uint32_t& high, uint32_t& low) {
  const __half2 both = *reinterpret_cast<const __half2*>(&pair);
  const float far = Far ? __uint_as_float(kFar & 0xffff0000u) : 1.0f;
  const float x = __low2float(both) * far, y = __high2float(both) * far;
  const uint32_t a = __float_as_uint(x) & 0xffff0000u, b = __float_as_uint(y) & 0xffff0000u;
  high = __byte_perm(a, b, 0x7632);
  low = __byte_perm(__float_as_uint(x - __uint_as_float(a)), __float_as_uint(y - __uint_as_float(b)), 0x7632);
}

}  // namespace lpq::cuda
