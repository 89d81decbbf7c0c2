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
__device__ __forceinline__ int pack_pitch(int dims) { return dims + 2; }

__device__ __forceinline__ uint32_t pack_code(unsigned short x, float scale, float zero, float top) {
  if (!(scale > 0)) return 0;
  return static_cast<uint32_t>(rintf(fminf(quotient(half_of(x) - zero, scale), top)));
}

// One block of threads for keys (0) or values (1) of a head of a block of tokens: kinds fastest, then heads, then blocks.
__device__ __forceinline__ void kv_pack(const KvPackArgs& a) {
  const KvDecodeArgs& p = a.places;
  const int index = static_cast<int>(blockIdx.x), kind = index & 1, head = (index >> 1) % p.kv_heads, number = (index >> 1) / p.kv_heads, thread = static_cast<int>(threadIdx.x);
  const int token = a.first + number * a.block, page = a.table[token / p.page_tokens], in_page = token % p.page_tokens, pitch = pack_pitch(a.dims), R = 16 / a.bits;
  const float top = static_cast<float>((1 << a.bits) - 1);
  unsigned short* const tile = reinterpret_cast<unsigned short*>(attention_shared());  // [block][pitch]
  float* const numbers = reinterpret_cast<float*>(tile + a.block * pitch);             // scale and zero of each group
  const unsigned short* from = (kind ? a.v : a.k) + (static_cast<long long>(number) * a.block * p.kv_heads + head) * a.dims;
  const int pairs = a.dims / 2;
  for (int i = thread; i < a.block * pairs; i += kPackThreads)
    *reinterpret_cast<uint32_t*>(tile + i / pairs * pitch + 2 * (i % pairs)) =
        *reinterpret_cast<const uint32_t*>(from + static_cast<long long>(i / pairs) * p.kv_heads * a.dims + 2 * (i % pairs));
  __syncthreads();
  // Groups: of keys [block / group][dims], of values [dims / group][block].
  const int groups = kind ? a.dims / a.value_group * a.block : a.block / a.key_group * a.dims;
  for (int i = thread; i < groups; i += kPackThreads) {
    const int line = kind ? i / a.block : i / a.dims, place = kind ? i % a.block : i % a.dims;
    const unsigned short* x = kind ? tile + place * pitch + line * a.value_group : tile + line * a.key_group * pitch + place;
    const int count = kind ? a.value_group : a.key_group, step = kind ? 1 : pitch;
    unsigned short least = x[0];
    float low = half_of(x[0]), high = low;
    for (int n = 1; n < count; ++n) {
      const float v = half_of(x[n * step]);
      if (v < low) low = v, least = x[n * step];
      high = fmaxf(high, v);
    }
    const unsigned short scale = half_bits(quotient(high - low, top));
    numbers[2 * i] = half_of(scale), numbers[2 * i + 1] = low;
    unsigned char* to;
    int apart;
    if (kind) {
      const int t = in_page + place;
      to = a.value_numbers + page * p.value_numbers_page + static_cast<long long>(line) * p.value_number_group + static_cast<long long>(head) * p.value_number_head +
           t / a.run * a.run * 4 + t % a.run * 2;
      apart = 2 * a.run;
    } else {
      to = a.key_numbers + page * p.key_numbers_page + static_cast<long long>(in_page / a.key_group + line) * p.key_number_row +
           static_cast<long long>(head) * p.key_number_head + place / 2 * 8 + place % 2 * 2;
      apart = 4;
    }
    *reinterpret_cast<unsigned short*>(to) = scale, *reinterpret_cast<unsigned short*>(to + apart) = least;
  }
  __syncthreads();
  const int words = a.block * a.dims / R;
  for (int i = thread; i < words; i += kPackThreads) {
    uint32_t word = 0;
    if (kind) {
      const int row = a.dims / R, t = i / row, w = i % row, in_chunk = a.chunk / R, first = w / in_chunk * a.chunk + w % in_chunk;
      for (int j = 0; j < R; ++j) {
        const int d = first + j * in_chunk;
        const float* n = numbers + 2 * (d / a.value_group * a.block + t);
        word |= pack_code(tile[t * pitch + d], n[0], n[1], top) << a.bits * j;
      }
      *reinterpret_cast<unsigned short*>(a.values + page * p.values_page + static_cast<long long>(in_page + t) * p.value_row + static_cast<long long>(head) * p.value_head + 2 * w) =
          static_cast<unsigned short>(word);
    } else {
      const int line = i / a.dims, d = i % a.dims, first = line / 32 * 32 * R + line % 32;
      for (int j = 0; j < R; ++j) {
        const int t = first + 32 * j;
        const float* n = numbers + 2 * (t / a.key_group * a.dims + d);
        word |= pack_code(tile[t * pitch + d], n[0], n[1], top) << a.bits * j;
      }
      *reinterpret_cast<unsigned short*>(a.keys + page * p.keys_page + static_cast<long long>(in_page / R + line) * p.key_row + static_cast<long long>(head) * p.key_head + 2 * d) =
          static_cast<unsigned short>(word);
    }
  }
}

}  // namespace lpq::cuda
