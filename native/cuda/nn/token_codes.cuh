// Codes of 8 bits of a token's activations and their scale, as quantize_tokens makes them (native/ops/w4ax.h). All
// fp32: products rounded once, an IEEE division.
#pragma once
#include <cuda_fp8.h>
#include <stdint.h>

#include "cuda/types.cuh"

namespace lpq {

__device__ __forceinline__ float quantize_scale(float most, float ratio) {
  const float scale = __fmul_rn(most, ratio);
  return scale < 1.17549435e-38f ? 0.0f : scale;
}
__device__ __forceinline__ float quantize_code(float x, float inverse, float top) {
  const float v = fminf(fmaxf(__fmul_rn(x, inverse), -top), top);
  return __fadd_rn(__fadd_rn(v, 12582912.0f), -12582912.0f);
}

// The largest magnitude of what a thread has seen, and whether it saw NaN or infinity.
struct TokenRange {
  float most = 0;
  bool bad = false;
  __device__ __forceinline__ void see(float v) {
    bad |= !(fabsf(v) <= 3.40282347e38f);
    most = fmaxf(most, fabsf(v));
  }
  __device__ __forceinline__ void see(const float4& v) { see(v.x), see(v.y), see(v.z), see(v.w); }
  // Of all threads of a block of whole warps, at most 32; `parts`: 32 floats of shared memory. In every thread.
  __device__ __forceinline__ float of_block(float* parts, unsigned* fault) {
    if (bad) *fault = 1;
    most = warp_max(most);
    if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = most;
    __syncthreads();
    for (unsigned w = 0; w < blockDim.x / 32; ++w) most = fmaxf(most, parts[w]);
    return most;
  }
};

// Codes in e4m3 (Float) or int8 of a token whose largest magnitude is `most`.
template <bool Float>
struct TokenCode {
  static constexpr float kTop = Float ? 448.0f : 127.0f;
  const float scale, inverse;
  __device__ __forceinline__ explicit TokenCode(float most)
      : scale(quantize_scale(most, 1.0f / kTop)), inverse(scale > 0 ? 1.0f / scale : 0.0f) {}
  __device__ __forceinline__ uint32_t operator()(float v) const {
    if constexpr (Float)
      return __nv_cvt_float_to_fp8(fminf(fmaxf(__fmul_rn(v, inverse), -kTop), kTop), __NV_SATFINITE, __NV_E4M3);
    else return static_cast<uint32_t>(static_cast<int>(quantize_code(v, inverse, kTop))) & 255u;
  }
  __device__ __forceinline__ uint32_t operator()(const float4& v) const {
    return (*this)(v.x) | (*this)(v.y) << 8 | (*this)(v.z) << 16 | (*this)(v.w) << 24;
  }
};

}  // namespace lpq
