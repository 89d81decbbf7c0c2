// Rows of f32 to f16 with a power of two each, and back: one block a row, each element read and written once where a row
// fits into registers (8192 elements), else read twice.
#include "cuda/types.cuh"
#include "lpq/row_scale.h"

using namespace lpq;

namespace {

constexpr int kThreads = 256, kKept = 8;

__device__ __forceinline__ uint32_t magnitude(float x) {
  const uint32_t bits = __float_as_uint(x) & 0x7fffffffu;
  return finite_f32(bits) ? bits : 0u;
}
__device__ __forceinline__ uint16_t packed(float x, float scale) {
  const uint32_t bits = __float_as_uint(x);
  return finite_f32(bits) ? __half_as_ushort(__float2half_rn(x * scale)) : special_to_f16(bits);
}
__device__ __forceinline__ float unpacked(uint16_t y, float inverse) {
  return finite_f16(y) ? __half2float(__ushort_as_half(y)) * inverse : __uint_as_float(special_to_f32(y));
}
__device__ __forceinline__ uint32_t largest4(float4 v, uint32_t largest) {
  return max(max(largest, max(magnitude(v.x), magnitude(v.y))), max(magnitude(v.z), magnitude(v.w)));
}
__device__ __forceinline__ ushort4 packed4(float4 v, float scale) {
  return make_ushort4(packed(v.x, scale), packed(v.y, scale), packed(v.z, scale), packed(v.w, scale));
}

// Of the whole block; every thread gets it.
__device__ uint32_t block_max(uint32_t value) {
  __shared__ uint32_t parts[kThreads / 32];
  value = __reduce_max_sync(0xffffffffu, value);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  for (int i = 0; i < kThreads / 32; ++i) value = max(value, parts[i]);
  return value;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads) lpq_pack_rows(const float* x, uint16_t* y, float* scales, index_t width, int vec) {
  const float* from = x + blockIdx.x * width;
  uint16_t* to = y + blockIdx.x * width;
  uint32_t largest = 0;
  if (vec) {
    const index_t fours = width / 4;
    const auto* from4 = reinterpret_cast<const float4*>(from);
    auto* to4 = reinterpret_cast<ushort4*>(to);
    float4 kept[kKept];
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const index_t c = threadIdx.x + i * kThreads;
      kept[i] = c < fours ? from4[c] : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kKept; ++i) largest = largest4(kept[i], largest);
    for (index_t c = threadIdx.x + kKept * kThreads; c < fours; c += kThreads) largest = largest4(from4[c], largest);
    const float scale = __uint_as_float(row_scale_bits(block_max(largest)));
    if (threadIdx.x == 0) scales[blockIdx.x] = scale;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const index_t c = threadIdx.x + i * kThreads;
      if (c < fours) to4[c] = packed4(kept[i], scale);
    }
    for (index_t c = threadIdx.x + kKept * kThreads; c < fours; c += kThreads) to4[c] = packed4(from4[c], scale);
  } else {
    for (index_t c = threadIdx.x; c < width; c += kThreads) largest = max(largest, magnitude(from[c]));
    const float scale = __uint_as_float(row_scale_bits(block_max(largest)));
    if (threadIdx.x == 0) scales[blockIdx.x] = scale;
    for (index_t c = threadIdx.x; c < width; c += kThreads) to[c] = packed(from[c], scale);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads) lpq_unpack_rows(const uint16_t* y, const float* scales, float* x, index_t width, int vec) {
  const uint16_t* from = y + blockIdx.x * width;
  float* to = x + blockIdx.x * width;
  const float inverse = 1.0f / scales[blockIdx.x];
  if (vec) {
    for (index_t c = threadIdx.x; c < width / 4; c += kThreads) {
      const ushort4 v = reinterpret_cast<const ushort4*>(from)[c];
      reinterpret_cast<float4*>(to)[c] = make_float4(unpacked(v.x, inverse), unpacked(v.y, inverse), unpacked(v.z, inverse), unpacked(v.w, inverse));
    }
  } else {
    for (index_t c = threadIdx.x; c < width; c += kThreads) to[c] = unpacked(from[c], inverse);
  }
}
