// Activations as codes of 8 and 4 bits; the same bytes as the CPU's (native/cpu/w4ax). Scales are fp32: products of
// fp32 numbers, rounded once, IEEE divisions.
#include "cuda/nn/token_codes.cuh"
#include "cuda/ptx/griddepcontrol.cuh"
#include "cuda/types.cuh"

namespace lpq {

// A block a token: codes s8 or e4m3 [t, k], scales [t] = largest magnitude / top.
//   thread t -> columns 4 t to 4 t + 3, and those 4 threads further, ... (fours), of which kHeld fours stay in
//   registers
template <class T, bool Float>
__device__ __forceinline__ void quantize_token(const T* x, unsigned char* codes, float* scales, int k, int fours,
                                               uint32_t* fault) {
  cuda::griddepcontrol_launch_and_wait();
  constexpr int kHeld = 4;
  __shared__ float most_of[32];
  const long long token = blockIdx.x;
  const T* const row = x + token * k;
  unsigned char* const to = codes + token * k;
  const int first = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x), count = fours ? k / 4 : k;
  float4 held[kHeld];
  TokenRange range;
  if (fours) {
#pragma unroll
    for (int h = 0; h < kHeld; ++h)
      held[h] = first + h * step < count ? load4(row + 4 * (first + h * step)) : make_float4(0, 0, 0, 0);
#pragma unroll
    for (int h = 0; h < kHeld; ++h) range.see(held[h]);
    for (int i = first + kHeld * step; i < count; i += step) range.see(load4(row + 4 * i));
  } else {
    for (int i = first; i < count; i += step) range.see(widen(row[i]));
  }
  const TokenCode<Float> code(range.of_block(most_of, fault));
  if (threadIdx.x == 0) scales[token] = code.scale;
  uint32_t* const words = reinterpret_cast<uint32_t*>(to);
  if (fours) {
#pragma unroll
    for (int h = 0; h < kHeld; ++h)
      if (first + h * step < count) words[first + h * step] = code(held[h]);
    for (int i = first + kHeld * step; i < count; i += step) words[i] = code(load4(row + 4 * i));
  } else {
    for (int i = first; i < count; i += step) to[i] = static_cast<unsigned char>(code(widen(row[i])));
  }
}

// The numbers of four codes.
template <bool Float>
__device__ __forceinline__ float4 numbers_of(uint32_t codes) {
  float v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t code = codes >> 8 * i & 255u;
    if constexpr (Float)
      v[i] = __half2float(__half(__nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(code), __NV_E4M3)));
    else v[i] = static_cast<float>(static_cast<signed char>(code));
  }
  return make_float4(v[0], v[1], v[2], v[3]);
}

// A block a token: x [t, k] = code 2^e, rest [t] = scale 2^-e, e between least and most. thread t -> columns as above.
template <class T, bool Float>
__device__ __forceinline__ void widen_token(const unsigned char* codes, const float* scales, T* x, float* rest, int k,
                                            int fours, int least, int most) {
  cuda::griddepcontrol_launch_and_wait();
  const long long token = blockIdx.x;
  const float scale = scales[token];
  const int e = scale > 0 ? min(max(static_cast<int>(__float_as_uint(scale) >> 23) - 127, least), most) : 0;
  const float power = __uint_as_float(static_cast<uint32_t>(127 + e) << 23);
  if (threadIdx.x == 0) rest[token] = __fmul_rn(scale, __uint_as_float(static_cast<uint32_t>(127 - e) << 23));
  const unsigned char* const from = codes + token * k;
  T* const to = x + token * k;
  for (int i = threadIdx.x; i < (fours ? k / 4 : k); i += blockDim.x) {
    if (fours) {
      const float4 v = numbers_of<Float>(reinterpret_cast<const uint32_t*>(from)[i]);
      store4(to + 4 * i, make_float4(v.x * power, v.y * power, v.z * power, v.w * power));
    } else {
      to[i] = narrow<T>(numbers_of<Float>(from[i]).x * power);
    }
  }
}

// y [t, n] = y rest [t] + bias.
template <class T>
__device__ __forceinline__ void scale_tokens(const float* rest, T* y, const void* bias, int bias_type, long long count,
                                             long long n) {
  cuda::griddepcontrol_launch_and_wait();
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
    y[i] = narrow<T>(__fadd_rn(__fmul_rn(widen(y[i]), rest[i / n]), bias ? load_any(bias, bias_type, i % n) : 0.0f));
}

// A warp a token and block of 128 columns, a lane four of them. order (or null): column j reads x's column order[j].
// `blocks` null: codes s8 [t, k] and scales [t, k / 128]. Else blocks of 8 bits side by side in `codes` [t, 128
// eights], those of 4 in `nibbles`
// [t, 64 fours]: of each 32 codes word i holds codes 4 i .. 4 i + 3 in the low nibbles of its bytes and 16 + 4 i .. in
// the high ones; scales [k / 128, pitch].
template <class T>
__device__ __forceinline__ void quantize_blocks(const T* x, const unsigned char* bits, const float* clip,
                                                const int* order, const int* blocks, signed char* codes,
                                                unsigned char* nibbles, float* scales, long long tokens, int k,
                                                int eights, int fours, int pitch, uint32_t* fault) {
  cuda::griddepcontrol_launch_and_wait();
  const int lane = threadIdx.x & 31, count = k / 128;
  const long long warps = static_cast<long long>(gridDim.x) * (blockDim.x >> 5);
  for (long long u = blockIdx.x * static_cast<long long>(blockDim.x >> 5) + (threadIdx.x >> 5); u < tokens * count;
       u += warps) {
    const long long t = u / count;
    const int b = static_cast<int>(u % count);
    float v[4];
    float most = 0;
    bool bad = false;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int column = b * 128 + lane * 4 + i;
      if (order) {
        column = order[column];
        if (column < 0 || column >= k) bad = true, column = 0;
      }
      v[i] = widen(x[t * k + column]);
      bad |= !(fabsf(v[i]) <= 3.40282347e38f);
      most = fmaxf(most, fabsf(v[i]));
    }
    if (bad || (bits[b] != 4 && bits[b] != 8)) *fault = 1;
    most = warp_max(most);
    const float top = bits[b] == 4 ? 7.0f : 127.0f;
    const float scale = quantize_scale(most, __fdiv_rn(clip[b], top)),
                inverse = scale > 0 ? __fdiv_rn(1.0f, scale) : 0.0f;
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      word |= (static_cast<uint32_t>(static_cast<int>(quantize_code(v[i], inverse, top))) & 255u) << 8 * i;
    if (!blocks) {
      *reinterpret_cast<uint32_t*>(codes + t * k + b * 128 + lane * 4) = word;
      if (lane == 0) scales[t * count + b] = scale;
      continue;
    }
    if (lane == 0) scales[static_cast<long long>(b) * pitch + t] = scale;
    const int place = blocks[b];
    if ((place < 0 && bits[b] == 8) || (place >= 0 ? place >= eights : ~place >= fours)) {
      *fault = 1;
      continue;
    }
    if (place >= 0) {
      *reinterpret_cast<uint32_t*>(codes + t * 128 * eights + place * 128 + lane * 4) = word;
    } else {
      const uint32_t low = word & 0x0f0f0f0fu, other = __shfl_xor_sync(0xffffffffu, low, 4);
      if ((lane & 4) == 0)
        *reinterpret_cast<uint32_t*>(nibbles + t * 64 * fours + ~place * 64 + (lane >> 3) * 16 + (lane & 3) * 4) =
            low | other << 4;
    }
  }
}

// x [t, k] = code * scale, a thread four neighbouring codes.
template <class T>
__device__ __forceinline__ void dequantize_blocks(const signed char* codes, const float* scales, T* x,
                                                  long long count) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < count; i += step) {
    const float scale = scales[i / 32];
    const char4 q = reinterpret_cast<const char4*>(codes)[i];
    store4(x + 4 * i, make_float4(q.x * scale, q.y * scale, q.z * scale, q.w * scale));
  }
}

// A warp a token and block of 128 columns: codes s8 [t, 128 (eights + fours)] of W4axBlocks (native/ops/w4ax.h), a lane
// four of them.
__device__ __forceinline__ void widen_blocks(const signed char* codes, const unsigned char* nibbles, const int* blocks,
                                             signed char* to, long long tokens, int eights, int fours) {
  const int lane = threadIdx.x & 31, count = eights + fours;
  const long long warps = static_cast<long long>(gridDim.x) * (blockDim.x >> 5);
  for (long long u = blockIdx.x * static_cast<long long>(blockDim.x >> 5) + (threadIdx.x >> 5); u < tokens * count;
       u += warps) {
    const long long t = u / count;
    const int place = blocks[u % count];
    uint32_t word;
    if (place >= 0) {
      word = *reinterpret_cast<const uint32_t*>(codes + (t * eights + place) * 128 + lane * 4);
    } else {
      word =
          *reinterpret_cast<const uint32_t*>(nibbles + (t * fours + ~place) * 64 + (lane >> 3) * 16 + (lane & 3) * 4);
      word = (lane & 4 ? word >> 4 : word) & 0x0f0f0f0fu;
      word |= (word & 0x08080808u) * 30;  // bit 3 to the four above: two's complement
    }
    *reinterpret_cast<uint32_t*>(to + u * 128 + lane * 4) = word;
  }
}

// Scales of two levels as one number each: factors [count / pitch, pitch] times the numbers of the n rows.
__device__ __forceinline__ void join_scales(const signed char* factors, const float* rows, float* to, long long count,
                                            int pitch, int n) {
  const long long threads = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < count; i += threads) {
    const int row = static_cast<int>(i % pitch);
    to[i] = row < n ? static_cast<float>(factors[i]) * rows[row] : 0.0f;
  }
}

}  // namespace lpq

extern "C" __global__ void __launch_bounds__(256)
    lpq_join_scales(const signed char* factors, const float* rows, float* to, long long count, int pitch, int n) {
  lpq::join_scales(factors, rows, to, count, pitch, n);
}
extern "C" __global__ void __launch_bounds__(256)
    lpq_widen_blocks(const signed char* codes, const unsigned char* nibbles, const int* blocks, signed char* to,
                     long long tokens, int eights, int fours) {
  lpq::widen_blocks(codes, nibbles, blocks, to, tokens, eights, fours);
}

#define LPQ_QUANTIZE(T, name)                                                                                      \
  extern "C" __global__ void __launch_bounds__(1024) lpq_quantize_tokens_i8_##name(                                \
      const T* x, unsigned char* codes, float* scales, int k, int fours, uint32_t* fault) {                        \
    lpq::quantize_token<T, false>(x, codes, scales, k, fours, fault);                                              \
  }                                                                                                                \
  extern "C" __global__ void __launch_bounds__(1024) lpq_quantize_tokens_f8_##name(                                \
      const T* x, unsigned char* codes, float* scales, int k, int fours, uint32_t* fault) {                        \
    lpq::quantize_token<T, true>(x, codes, scales, k, fours, fault);                                               \
  }                                                                                                                \
  extern "C" __global__ void __launch_bounds__(256) lpq_widen_tokens_i8_##name(                                    \
      const unsigned char* codes, const float* scales, T* x, float* rest, int k, int fours, int least, int most) { \
    lpq::widen_token<T, false>(codes, scales, x, rest, k, fours, least, most);                                     \
  }                                                                                                                \
  extern "C" __global__ void __launch_bounds__(256) lpq_widen_tokens_f8_##name(                                    \
      const unsigned char* codes, const float* scales, T* x, float* rest, int k, int fours, int least, int most) { \
    lpq::widen_token<T, true>(codes, scales, x, rest, k, fours, least, most);                                      \
  }                                                                                                                \
  extern "C" __global__ void __launch_bounds__(256) lpq_scale_tokens_##name(                                       \
      const float* rest, T* y, const void* bias, int bias_type, long long count, long long n) {                    \
    lpq::scale_tokens<T>(rest, y, bias, bias_type, count, n);                                                      \
  }                                                                                                                \
  extern "C" __global__ void __launch_bounds__(256)                                                                \
      lpq_quantize_blocks_##name(const T* x, const unsigned char* bits, const float* clip, const int* order,       \
                                 const int* blocks, signed char* codes, unsigned char* nibbles, float* scales,     \
                                 long long tokens, int k, int eights, int fours, int pitch, uint32_t* fault) {     \
    lpq::quantize_blocks<T>(x, bits, clip, order, blocks, codes, nibbles, scales, tokens, k, eights, fours, pitch, \
                            fault);                                                                                \
  }                                                                                                                \
  extern "C" __global__ void __launch_bounds__(256)                                                                \
      lpq_dequantize_blocks_##name(const signed char* codes, const float* scales, T* x, long long count) {         \
    lpq::dequantize_blocks<T>(codes, scales, x, count);                                                            \
  }
LPQ_EACH_TYPE(LPQ_QUANTIZE)
