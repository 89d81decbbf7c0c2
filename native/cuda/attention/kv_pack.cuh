// Quantizes blocks of keys and values and packs them: of a prompt, or of a tail that is full. The arithmetic is ops.kvQuantize's, to
// the bit: scale = f16(fl32((largest - zero) / top)), code = fl32((x - zero) / scale) to the nearest integer.
#pragma once
#include "cuda/attention/kv_shape.h"
#ifdef LPQ_SIMT
#include LPQ_SIMT
#else
#include "cuda/attention/kv_ptx.cuh"
#endif

namespace lpq::cuda {

constexpr int kPackThreads = 256;

// Rows of the tile in shared memory are a word apart modulo 32 banks.
template <int DIMS>
constexpr int kPackPitch = DIMS + 2;

// (x - zero) / scale to the nearest integer, ties to even, at most top. The product with the reciprocal errs by 2^-21 of up to 255;
// where that may decide, the quotient does.
__device__ __forceinline__ uint32_t pack_code(float x, float scale, float inverse, float zero, float top) {
  const float above = x - zero, near = above * inverse;
  float whole = rintf(near);
  if (fabsf(fabsf(near - whole) - 0.5f) < 0.001f) whole = rintf(fminf(quotient(above, scale), top));
  return static_cast<uint32_t>(fminf(whole, top));
}

// One block of threads for keys (0) or values (1) of a head of a block of tokens: kinds fastest, then heads, then blocks.
template <int BITS, int DIMS>
__device__ __forceinline__ void kv_pack(const KvPackArgs& a) {
  constexpr int R = 16 / BITS, pitch = kPackPitch<DIMS>, eights = DIMS / 8, chunk = DIMS < 128 ? DIMS : 128, in_chunk = chunk / R;
  constexpr float top = static_cast<float>((1 << BITS) - 1);
  const KvDecodeArgs& p = a.places;
  const int index = static_cast<int>(blockIdx.x), kind = index & 1, head = (index >> 1) % p.kv_heads, number = (index >> 1) / p.kv_heads, thread = static_cast<int>(threadIdx.x);
  const int token = a.first + number * a.block, page = a.table[token / p.page_tokens], in_page = token % p.page_tokens;
  unsigned short* const tile = reinterpret_cast<unsigned short*>(attention_shared());  // [block][pitch]
  float4* const numbers = reinterpret_cast<float4*>(attention_shared() + (2 * a.block * pitch + 15) / 16 * 16);  // of each group scale, 1 / scale, zero
  const unsigned short* from = (kind ? a.v : a.k) + (static_cast<long long>(number) * a.block * p.kv_heads + head) * DIMS;
  for (int i = thread; i < a.block * eights; i += kPackThreads) {
    const uint4 x = *reinterpret_cast<const uint4*>(from + static_cast<long long>(i / eights) * p.kv_heads * DIMS + 8 * (i % eights));
    uint32_t* to = reinterpret_cast<uint32_t*>(tile + i / eights * pitch + 8 * (i % eights));
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
  }
  __syncthreads();
  // Groups: of keys [block / group][dims], of values [dims / group][block].
  const int across = kind ? a.block : DIMS, group = kind ? a.value_group : a.key_group, groups = (kind ? DIMS : a.block) / group * across;
  for (int i = thread; i < groups; i += kPackThreads) {
    const int line = i / across, place = i % across, step = kind ? 1 : pitch;
    const unsigned short* x = kind ? tile + place * pitch + line * group : tile + line * group * pitch + place;
    unsigned short least = x[0];
    float low = half_of(x[0]), high = low;
#pragma unroll 8
    for (int n = 1; n < group; ++n) {
      const unsigned short bits = x[n * step];
      const float v = half_of(bits);
      if (v < low) low = v, least = bits;
      high = fmaxf(high, v);
    }
    const unsigned short scale = half_bits(quotient(high - low, top));
    const float s = half_of(scale);
    numbers[i] = make_float4(s, s > 0 ? quotient(1.0f, s) : 0.0f, low, 0);
    unsigned char* to;
    int apart;
    if (kind) {
      const int t = in_page + place;
      to = a.value_numbers + page * p.value_numbers_page + static_cast<long long>(line) * p.value_number_group + static_cast<long long>(head) * p.value_number_head +
           t / a.run * a.run * 4 + t % a.run * 2;
      apart = 2 * a.run;
    } else {
      to = a.key_numbers + page * p.key_numbers_page + static_cast<long long>(in_page / group + line) * p.key_number_row + static_cast<long long>(head) * p.key_number_head +
           place / 2 * 8 + place % 2 * 2;
      apart = 4;
    }
    *reinterpret_cast<unsigned short*>(to) = scale, *reinterpret_cast<unsigned short*>(to + apart) = least;
  }
  __syncthreads();
  // Two words that stand side by side: of neighbouring channels, or dims. Groups of 32 and more hold both or neither.
  for (int i = thread; i < a.block * DIMS / R / 2; i += kPackThreads) {
    uint32_t word = 0;
    constexpr int row = DIMS / R / 2;  // pairs of words of a token of values
    const int t0 = kind ? i / row : i / (DIMS / 2) / 32 * 32 * R + i / (DIMS / 2) % 32;
    const int d0 = kind ? 2 * (i % row) / in_chunk * chunk + 2 * (i % row) % in_chunk : 2 * (i % (DIMS / 2));
#pragma unroll
    for (int j = 0; j < R; ++j) {
      const int t = kind ? t0 : t0 + 32 * j, d = kind ? d0 + j * in_chunk : d0;
      const uint32_t x = *reinterpret_cast<const uint32_t*>(tile + t * pitch + d);
      const float4 low = kind ? numbers[d / group * a.block + t] : numbers[t / group * DIMS + d], high = kind ? low : numbers[t / group * DIMS + d + 1];
      word |= pack_code(half_of(static_cast<unsigned short>(x)), low.x, low.y, low.z, top) << BITS * j;
      word |= pack_code(half_of(static_cast<unsigned short>(x >> 16)), high.x, high.y, high.z, top) << (BITS * j + 16);
    }
    unsigned char* to = kind ? a.values + page * p.values_page + static_cast<long long>(in_page + t0) * p.value_row + static_cast<long long>(head) * p.value_head + 4 * (i % row)
                             : a.keys + page * p.keys_page + static_cast<long long>(in_page / R + i / (DIMS / 2)) * p.key_row + static_cast<long long>(head) * p.key_head + 2 * d0;
    *reinterpret_cast<uint32_t*>(to) = word;
  }
}

#define LPQ_KV_PACK(bits, dims)                                                                                                      \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kPackThreads) lpq_kv_pack_##bits##_##dims(const __grid_constant__ lpq::cuda::KvPackArgs a) { \
    lpq::cuda::kv_pack<bits, dims>(a);                                                                                               \
  }

}  // namespace lpq::cuda
