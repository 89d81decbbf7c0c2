// What kv_prefill.cuh reads of a packed cache.
#pragma once
#include "cuda/attention/kv_shape.h"
#include "cuda/numbers.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

// Dims d to d + 7 of token `t` of a page, as halves: code * scale + zero, rounded once.
template <int DIMS>
__device__ __forceinline__ uint4 prefill_load(const KvDecodeArgs& a, bool value, int page, int t, int head, int d) {
  const int bits = value ? a.value_bits : a.key_bits, mask = (1 << bits) - 1;
  const unsigned char* const codes =
      (value ? a.values + page * a.values_page + static_cast<long long>(head) * a.value_head
             : a.keys + page * a.keys_page + static_cast<long long>(head) * a.key_head);
  const unsigned char* const numbers =
      value ? a.value_numbers + page * a.value_numbers_page + static_cast<long long>(head) * a.value_number_head
            : a.key_numbers + page * a.key_numbers_page + static_cast<long long>(head) * a.key_number_head;
  int code[8];
  if (a.words) {
    const unsigned char* const at =
        codes + static_cast<long long>(t) * (value ? a.value_row : a.key_row) + d * bits / 8;
    if (bits == 4) {
      const uint32_t word = *reinterpret_cast<const uint32_t*>(at);
#pragma unroll
      for (int i = 0; i < 8; ++i) code[i] = static_cast<int>(word >> (4 * (i >> 1) + 16 * (i & 1)) & 15);
    } else {
      const uint2 word = *reinterpret_cast<const uint2*>(at);
#pragma unroll
      for (int i = 0; i < 8; ++i) code[i] = static_cast<int>((i < 4 ? word.x : word.y) >> 8 * (i & 3) & 255);
    }
  } else {
    // Eight words side by side, of which one place is wanted.
    const int R = 16 / bits, chunk = DIMS < 128 ? DIMS : 128, in_chunk = chunk / R;
    const int place = value ? d % chunk / in_chunk : t % (32 * R) / 32;
    const unsigned char* const at =
        value ? codes + static_cast<long long>(t) * a.value_row + 2 * (d / chunk * in_chunk + d % chunk % in_chunk)
              : codes + static_cast<long long>(t / (32 * R) * 32 + t % 32) * a.key_row + 2 * d;
    const uint4 v = *reinterpret_cast<const uint4*>(at);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) code[i] = static_cast<int>(words[i / 2] >> (16 * (i & 1) + bits * place)) & mask;
  }
  uint32_t result[4];
  if (!value && !a.by_token) {
    const unsigned char* const at = numbers + static_cast<long long>(t / a.key_group) * a.key_number_row + 4 * d;
    const uint4 first = *reinterpret_cast<const uint4*>(at), second = *reinterpret_cast<const uint4*>(at + 16);
    const uint32_t scales[4] = {first.x, first.z, second.x, second.z},
                   zeros[4] = {first.y, first.w, second.y, second.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      result[i] =
          cvt_x2<false>(__fmaf_rn(static_cast<float>(code[2 * i]), low_half(scales[i]), low_half(zeros[i])),
                        __fmaf_rn(static_cast<float>(code[2 * i + 1]), high_half(scales[i]), high_half(zeros[i])));
  } else {
    float scale, zero;
    if (a.words) {
      const uint32_t both = *reinterpret_cast<const uint32_t*>(numbers + 4 * t);
      scale = low_half(both), zero = high_half(both);
    } else {
      const unsigned short* const at =
          reinterpret_cast<const unsigned short*>(numbers +
                                                  static_cast<long long>(d / (value ? a.value_group : a.key_group)) *
                                                      (value ? a.value_number_group : a.key_number_row) +
                                                  (t & -a.run) * 4) +
          (t & (a.run - 1));
      scale = to_float<false>(at[0]), zero = to_float<false>(at[a.run]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      result[i] = cvt_x2<false>(__fmaf_rn(static_cast<float>(code[2 * i]), scale, zero),
                                __fmaf_rn(static_cast<float>(code[2 * i + 1]), scale, zero));
  }
  return make_uint4(result[0], result[1], result[2], result[3]);
}

}  // namespace lpq::cuda
