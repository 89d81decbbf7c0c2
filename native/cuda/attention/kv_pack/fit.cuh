// Groups with fitted ends (formats/kv/spec.md, Fitted ends) of kv_pack.cuh. A warp has a group: (lane) -> start i =
// lane / 5, j = lane % 5, of the first 25. Each lane adds doubles one number after another, so the CPU stores the same
// bytes; what is exact it adds in other ways. Numbers are stored first; codes are made of them, a thread a word: keys
// (word row, dim) -> tokens 32 apart, values (token, word) -> dims CHUNK / R apart.
#pragma once
#include <cstring>

#include "cuda/attention/kv_shape.h"
#include "cuda/numbers.cuh"
#include "cuda/ptx/shared_memory.cuh"

namespace lpq::cuda {

struct KvFitEnds {
  float low, high;
};

__device__ __forceinline__ float fit_half(double v) {
  return to_float<false>(from_float<false>(static_cast<float>(v)));
}
__device__ __forceinline__ unsigned short fit_scale(float low, float high, float top) {
  return from_float<false>(__fdiv_rn(high - low, top));
}
// A group's numbers of one warp in shared memory, and what they exceed the least of them by.
struct KvFitNumbers {
  double* over;
  float* numbers;
  // `most`: numbers of the largest group; shared memory has room for so many of every warp (kv_fit_shared).
  __device__ __forceinline__ explicit KvFitNumbers(int most) {
    const int warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
    auto* const room = reinterpret_cast<double*>(dynamic_shared());
    over = room + warp * most, numbers = reinterpret_cast<float*>(room + warps * most) + warp * most;
  }
};

// Codes of a grid: nearest, ties to even; of what lies beyond an end, that end's. The quotient by a reciprocal, which
// two corrections bring to the nearest float, is what a division gives.
struct KvFitGrid {
  float low, step, top, reciprocal;
  __device__ __forceinline__ KvFitGrid(float low, float step, float top)
      : low(low), step(step), top(top), reciprocal(step > 0 ? __fdiv_rn(1.0f, step) : 0.0f) {}
  __device__ __forceinline__ int code(float v) const {
    const float above = v - low;
    float quotient = above * reciprocal;
#pragma unroll
    for (int i = 0; i < 2; ++i) quotient = fmaf(fmaf(-quotient, step, above), reciprocal, quotient);
    const float nearest = fminf(fmaxf(quotient, 0.0f), top) + 12582912.0f;
    uint32_t bits;
    memcpy(&bits, &nearest, sizeof bits);
    return static_cast<int>(bits - 0x4b400000u);
  }
};

// A code as a double, without a conversion: those are slow.
__device__ __forceinline__ double fit_double(int code) {
  const unsigned long long bits = 0x4330000000000000ull | static_cast<unsigned>(code);
  double v;
  memcpy(&v, &bits, sizeof v);
  return v - 4503599627370496.0;
}

// A lane's start: error and ends of the best of its rounds, unless it has none. Numbers, ends and scales are halves,
// multiples of 2^-24 below 2^16, so only the sums of squares and of products with codes round; those of codes, and
// what fma does, are exact.
__device__ __forceinline__ void fit_start(int start, const KvFitEnds& range_ends, float top, int count,
                                          const KvFitNumbers& x, double& least, KvFitEnds& best) {
  constexpr int kShares = 5, kRounds = 2;
  const double low = range_ends.low, high = range_ends.high, range = high - low, n = count;
  double from = low + 0.025 * (start / kShares) * range, to = high - 0.025 * (start % kShares) * range, sum = 0;
  for (int i = 0; i < count; ++i) sum += x.over[i];
#pragma unroll 1
  for (int round = 0; round <= kRounds; ++round) {
    const KvFitEnds ends{fit_half(from), fit_half(to)};
    if (!(ends.high > ends.low) || !(fabsf(ends.low) < INFINITY) || !(fabsf(ends.high) < INFINITY)) return;
    const float step = to_float<false>(fit_scale(ends.low, ends.high, top));
    const KvFitGrid grid(ends.low, step, top);
    const double wide_step = step, shift = low - ends.low;
    double error = 0, products = 0;
    int all_codes = 0, all_squares = 0;
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      const int whole = grid.code(x.numbers[i]);
      const double over = x.over[i], code = fit_double(whole), off = fma(code, wide_step, -(over + shift));
      error += off * off, products = fma(code, over, products);
      all_codes += whole, all_squares += whole * whole;
    }
    if (error < least) least = error, best = ends;
    // The line over codes of least squares; codes follow it in the next round.
    const double codes = all_codes, squares = all_squares, spread = n * squares - codes * codes;
    if (!(spread > 0)) return;
    const double slope = (n * products - codes * sum) / spread;
    from = (sum - slope * codes) / n + low, to = from + top * slope;
  }
}

// Ends of the `count` numbers x(i), halves; the same in all lanes of a warp, which all come here.
template <class X>
__device__ __forceinline__ KvFitEnds fit_ends(const KvPackArgs& a, float top, int count, const X& x,
                                              const KvFitNumbers& room) {
  constexpr int kStarts = 25;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const float begin = to_float<false>(x(0));
  KvFitEnds best{begin, begin};
  int finite = 1;
  __syncwarp();  // the group before has been read
  for (int i = lane; i < count; i += 32) {
    const uint32_t bits = x(i);
    const float v = to_float<false>(bits);
    if ((bits & 0x7c00u) == 0x7c00u) finite = 0;
    best.low = v < best.low ? v : best.low, best.high = best.high < v ? v : best.high;
    room.numbers[i] = v;
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    const float low = __shfl_xor_sync(0xffffffffu, best.low, mask),
                high = __shfl_xor_sync(0xffffffffu, best.high, mask);
    finite &= __shfl_xor_sync(0xffffffffu, finite, mask);
    best.low = low < best.low ? low : best.low, best.high = best.high < high ? high : best.high;
  }
  if (!finite) *a.fault = 1;
  // Of zeros alone the first has the sign.
  if (!(best.high > best.low)) best = {begin, begin};
  for (int i = lane; i < count; i += 32) room.over[i] = static_cast<double>(room.numbers[i]) - best.low;
  __syncwarp();
  double least = INFINITY;
  if (lane < kStarts && finite) fit_start(lane, KvFitEnds(best), top, count, room, least, best);
  __syncwarp();
  // Of equal errors the first start's: those of non-negative doubles are ordered as their bits.
  unsigned long long error;
  memcpy(&error, &least, sizeof error);
  int start = lane;
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    const uint32_t upper = __shfl_xor_sync(0xffffffffu, static_cast<uint32_t>(error >> 32), mask),
                   lower = __shfl_xor_sync(0xffffffffu, static_cast<uint32_t>(error), mask);
    const KvFitEnds ends{__shfl_xor_sync(0xffffffffu, best.low, mask), __shfl_xor_sync(0xffffffffu, best.high, mask)};
    const int of = __shfl_xor_sync(0xffffffffu, start, mask);
    const unsigned long long other = static_cast<unsigned long long>(upper) << 32 | lower;
    if (other < error || (other == error && of < start)) error = other, best = ends, start = of;
  }
  return best;
}

// Where numbers and words of one side of a block lie.
template <int CHUNK, bool BY_TOKEN, class Block>
struct KvFitSide {
  const KvPackArgs& a;
  const Block& b;
  bool value;
  int bits, group;
  __device__ __forceinline__ KvFitSide(const KvPackArgs& a, const Block& b, bool value)
      : a(a),
        b(b),
        value(value),
        bits(value ? a.places.value_bits : a.places.key_bits),
        group(value ? a.places.value_group : a.places.key_group) {}
  __device__ __forceinline__ float top() const { return static_cast<float>((1 << bits) - 1); }
  __device__ __forceinline__ bool by_token() const { return BY_TOKEN || value; }
  // Of a scale; its zero lies apart() numbers further.
  __device__ __forceinline__ unsigned short* number(int token, int dim) const {
    const KvDecodeArgs& p = a.places;
    const long long head = b.head;
    unsigned char* const page = value ? a.value_numbers + b.page * p.value_numbers_page + head * p.value_number_head
                                      : a.key_numbers + b.page * p.key_numbers_page + head * p.key_number_head;
    const int t = b.token + token;
    if (!by_token())
      return reinterpret_cast<unsigned short*>(page + static_cast<long long>(t / group) * p.key_number_row +
                                               4 * (dim & ~1)) +
             (dim & 1);
    const long long line = value ? p.value_number_group : p.key_number_row;
    return reinterpret_cast<unsigned short*>(page + (dim / group) * line + (t & -p.run) * 4) + (t & (p.run - 1));
  }
  __device__ __forceinline__ int apart() const { return by_token() ? a.places.run : 2; }
  __device__ __forceinline__ uint32_t code(int token, int dim) const {
    const unsigned short* const at = number(token, dim);
    const float step = to_float<false>(at[0]), low = to_float<false>(at[apart()]);
    return static_cast<uint32_t>(KvFitGrid(low, step, top()).code(to_float<false>(b.half(token, dim))));
  }
};

// A block of a.block tokens of one head: keys or values of CHUNK dims from `dim` on, by all threads.
template <int CHUNK, bool BY_TOKEN, class Block>
__device__ __forceinline__ void fit_block(const KvPackArgs& a, const Block& b, bool value, int dim) {
  const KvFitSide<CHUNK, BY_TOKEN, Block> side(a, b, value);
  const KvDecodeArgs& p = a.places;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x), tokens = a.block,
            group = side.group;
  const KvFitNumbers room(max(p.key_group, p.value_group));
#pragma unroll 1
  for (int n = thread / 32; n < tokens * CHUNK / group; n += threads / 32) {
    const bool across = side.by_token();
    const int token = across ? n % tokens : n / CHUNK * group, first = dim + (across ? n / tokens * group : n % CHUNK);
    const KvFitEnds ends = fit_ends(
        a, side.top(), group, [&](int i) { return across ? b.half(token, first + i) : b.half(token + i, first); },
        room);
    if (thread % 32 != 0) continue;
    unsigned short* const to = side.number(token, first);
    to[0] = fit_scale(ends.low, ends.high, side.top()), to[side.apart()] = from_float<false>(ends.low);
  }
  __syncthreads();  // numbers are there
  const int codes = 16 / side.bits, width = value ? CHUNK / codes : CHUNK;
#pragma unroll 1
  for (int n = thread; n < tokens * CHUNK / codes; n += threads) {
    const int row = n / width, column = n % width;
    uint32_t word = 0;
    for (int j = 0; j < codes; ++j)
      word |= (value ? side.code(row, dim + column + j * width)
                     : side.code(row / 32 * 32 * codes + row % 32 + 32 * j, dim + column))
              << side.bits * j;
    unsigned char* const to = value
                                  ? a.values + b.page * p.values_page + static_cast<long long>(b.head) * p.value_head +
                                        static_cast<long long>(b.token + row) * p.value_row + 2 * (dim / codes + column)
                                  : a.keys + b.page * p.keys_page + static_cast<long long>(b.head) * p.key_head +
                                        static_cast<long long>(b.token / codes + row) * p.key_row + 2 * (dim + column);
    *reinterpret_cast<unsigned short*>(to) = static_cast<unsigned short>(word);
  }
}

// turbomind: a token of a head, by a warp; codes of 4 bits in the order 75316420 of eight dims.
__device__ __forceinline__ void fit_words(const KvPackArgs& a, int bits, const unsigned short* from, unsigned char* to,
                                          unsigned char* number, int head_dims) {
  const float top = static_cast<float>((1 << bits) - 1);
  const int lane = static_cast<int>(threadIdx.x & 31);
  const auto x = [&](int i) { return i < head_dims ? uint32_t{from[i]} : 0u; };
  const KvFitEnds ends = fit_ends(a, top, a.dims, x, KvFitNumbers(a.dims));
  const unsigned short scale = fit_scale(ends.low, ends.high, top);
  const KvFitGrid grid(ends.low, to_float<false>(scale), top);
  if (lane == 0)
    *reinterpret_cast<uint32_t*>(number) = scale | static_cast<uint32_t>(from_float<false>(ends.low)) << 16;
#pragma unroll 1
  for (int eight = lane; eight < a.dims / 8; eight += 32) {
    uint32_t word[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto code = static_cast<uint32_t>(grid.code(to_float<false>(x(8 * eight + i))));
      if (bits == 4) word[0] |= code << (16 * (i & 1) + 4 * (i / 2));
      else word[i / 4] |= code << 8 * (i % 4);
    }
    *reinterpret_cast<uint32_t*>(to + bits * eight) = word[0];
    if (bits == 8) *reinterpret_cast<uint32_t*>(to + bits * eight + 4) = word[1];
  }
}

}  // namespace lpq::cuda
