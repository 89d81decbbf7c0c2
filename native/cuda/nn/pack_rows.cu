// Rows of f32 to f16 with a power of two each, and back: one block a row. What fits into registers (16384 elements at
// most) is read once, the rest of a row twice.
#include "cuda/types.cuh"
#include "lpq/row_scale.h"

using namespace lpq;

namespace {

constexpr int kThreads = 256;

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
template <int Threads>
__device__ uint32_t block_max(uint32_t value) {
  __shared__ uint32_t parts[Threads / 32];
  value = __reduce_max_sync(0xffffffffu, value);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  for (int i = 0; i < Threads / 32; ++i) value = max(value, parts[i]);
  return value;
}

// `Kept` groups of four elements stay in each thread's registers.
template <int Threads, int Kept>
__device__ __forceinline__ void pack_row4(const float* x, uint16_t* y, float* scales, index_t width) {
  const auto* from = reinterpret_cast<const float4*>(x + blockIdx.x * width);
  auto* to = reinterpret_cast<ushort4*>(y + blockIdx.x * width);
  const int fours = static_cast<int>(width / 4);
  uint32_t largest = 0;
  float4 kept[Kept];
#pragma unroll
  for (int i = 0; i < Kept; ++i) {
    const int c = threadIdx.x + i * Threads;
    kept[i] = c < fours ? __ldcs(from + c) : make_float4(0, 0, 0, 0);
  }
#pragma unroll
  for (int i = 0; i < Kept; ++i) largest = largest4(kept[i], largest);
  for (int c = threadIdx.x + Kept * Threads; c < fours; c += Threads) largest = largest4(from[c], largest);
  const float scale = __uint_as_float(row_scale_bits(block_max<Threads>(largest)));
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
#pragma unroll
  for (int i = 0; i < Kept; ++i) {
    const int c = threadIdx.x + i * Threads;
    if (c < fours) __stcs(to + c, packed4(kept[i], scale));
  }
  for (int c = threadIdx.x + Kept * Threads; c < fours; c += Threads) to[c] = packed4(from[c], scale);
}

}  // namespace

// Names: threads of a block, groups kept.
#define LPQ_PACK_ROWS(THREADS, KEPT)                                                                \
  extern "C" __global__ void __launch_bounds__(THREADS)                                             \
      lpq_pack_rows_##THREADS##_##KEPT(const float* x, uint16_t* y, float* scales, index_t width) { \
    pack_row4<THREADS, KEPT>(x, y, scales, width);                                                  \
  }
LPQ_PACK_ROWS(256, 1)
LPQ_PACK_ROWS(256, 2)
LPQ_PACK_ROWS(256, 4)
LPQ_PACK_ROWS(512, 4)
LPQ_PACK_ROWS(512, 8)
#undef LPQ_PACK_ROWS

// Of any width and alignment.
extern "C" __global__ void __launch_bounds__(kThreads)
    lpq_pack_rows(const float* x, uint16_t* y, float* scales, index_t width) {
  const float* from = x + blockIdx.x * width;
  uint16_t* to = y + blockIdx.x * width;
  uint32_t largest = 0;
  for (index_t c = threadIdx.x; c < width; c += kThreads) largest = max(largest, magnitude(from[c]));
  const float scale = __uint_as_float(row_scale_bits(block_max<kThreads>(largest)));
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
  for (index_t c = threadIdx.x; c < width; c += kThreads) to[c] = packed(from[c], scale);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    lpq_unpack_rows(const uint16_t* y, const float* scales, float* x, index_t width, int vec) {
  const uint16_t* from = y + blockIdx.x * width;
  float* to = x + blockIdx.x * width;
  const float inverse = 1.0f / scales[blockIdx.x];
  if (vec) {
    for (index_t c = threadIdx.x; c < width / 4; c += kThreads) {
      const ushort4 v = reinterpret_cast<const ushort4*>(from)[c];
      reinterpret_cast<float4*>(to)[c] =
          make_float4(unpacked(v.x, inverse), unpacked(v.y, inverse), unpacked(v.z, inverse), unpacked(v.w, inverse));
    }
  } else {
    for (index_t c = threadIdx.x; c < width; c += kThreads) to[c] = unpacked(from[c], inverse);
  }
}
