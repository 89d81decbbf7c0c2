// layout_pack and layout_unpack by the tables of a plan: a thread makes a word (packing) or a stored element or byte of
// the matrix (unpacking), so nothing is written twice and nothing needs an order.
#include "cuda/layout/pack.h"
#include "cuda/ptx/shared_memory.cuh"

namespace lpq::cuda {
namespace {

struct Piece {  // layout::Piece
  uint32_t element, mask, shift;
};

__device__ __forceinline__ uint32_t mask_of(int bits) { return bits >= 32 ? ~0u : (1u << bits) - 1u; }

__device__ __forceinline__ uint32_t load_element(const LayoutArgs& a, int64_t row, int64_t column) {
  if (row >= a.rows || column >= a.columns) return a.pad;
  const uint8_t* line = a.matrix + row * a.row_bytes;
  if (a.order)
    column = min(max(a.order[column], 0), static_cast<int32_t>(a.columns) - 1);  // lpq_layout_check_order complains
  uint32_t v;
  if (a.stream) {
    const int64_t bit = column * a.bits;
    v = line[bit / 8];
    if (bit % 8 + a.bits > 8) v |= static_cast<uint32_t>(line[bit / 8 + 1]) << 8;
    v >>= bit % 8;
  } else if (a.bits <= 8) {
    v = line[column];
  } else if (a.bits == 16) {
    v = reinterpret_cast<const uint16_t*>(line)[column];
  } else {
    v = reinterpret_cast<const uint32_t*>(line)[column];
  }
  return (v + a.bias) & mask_of(a.bits);
}

__device__ __forceinline__ void store_word(uint8_t* packed, int word_bytes, int64_t at, uint32_t word) {
  if (word_bytes == 4) reinterpret_cast<uint32_t*>(packed)[at] = word;
  else if (word_bytes == 2) reinterpret_cast<uint16_t*>(packed)[at] = static_cast<uint16_t>(word);
  else packed[at] = static_cast<uint8_t>(word);
}
__device__ __forceinline__ uint32_t load_word(const uint8_t* packed, int word_bytes, int64_t at) {
  return word_bytes == 4   ? reinterpret_cast<const uint32_t*>(packed)[at]
         : word_bytes == 2 ? reinterpret_cast<const uint16_t*>(packed)[at]
                           : packed[at];
}

__device__ __forceinline__ uint32_t stored_element(const LayoutArgs& a, int64_t row, int64_t column) {
  const int64_t tile_row = row / a.tile_rows, tile_column = column / a.tile_columns;
  const int64_t element = (row % a.tile_rows) * a.tile_columns + column % a.tile_columns;
  const int64_t base = a.outer_rows[tile_row] + a.outer_columns[tile_column];
  const LayoutRun* runs = static_cast<const LayoutRun*>(a.pieces);
  uint32_t v = 0;
  for (uint32_t i = a.first[element]; i < a.first[element + 1]; ++i)
    v |= static_cast<uint32_t>(
        (static_cast<uint64_t>(load_word(a.packed, a.word_bytes, base + a.words[runs[i].word]) & runs[i].mask) << 32) >>
        runs[i].shift);
  return (v - a.bias) & mask_of(a.bits);
}

}  // namespace

extern "C" __global__ void lpq_layout_pack(LayoutArgs a) {
  const int64_t total = a.tiles_down * a.tiles_across * a.word_count;
  const Piece* pieces = static_cast<const Piece*>(a.pieces);
  for (int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; index < total;
       index += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t tile = index / a.word_count, w = index % a.word_count;
    const int64_t down = tile / a.tiles_across, across = tile % a.tiles_across;
    uint32_t word = 0;
    for (uint32_t i = a.first[w]; i < a.first[w + 1]; ++i) {
      const Piece piece = pieces[i];
      const uint32_t v = load_element(a, down * a.tile_rows + piece.element / a.tile_columns,
                                      across * a.tile_columns + piece.element % a.tile_columns);
      word |= static_cast<uint32_t>(static_cast<uint64_t>(v) << piece.shift >> 32) & piece.mask;
    }
    store_word(a.packed, a.word_bytes, a.outer_rows[down] + a.outer_columns[across] + a.words[w], word);
  }
}

namespace {

// Four codes in the low 4 * bits bits of v -> one a byte: halves move apart, then quarters. What is left between them
// is cut off.
template <int bits>
__device__ __forceinline__ uint32_t spread(uint32_t v) {
  if constexpr (bits < 8) {
    constexpr uint32_t pair = (1u << 2 * bits) - 1u, one = (1u << bits) - 1u, single = one | one << 16;
    v = (v & pair) | ((v << (16 - 2 * bits)) & ~pair);
    v = ((v & single) | ((v << (8 - bits)) & ~single)) & one * 0x01010101u;
  }
  return v;
}

// The words that hold eight codes, which are `bits` bytes.
template <int bits>
struct Eight {
  static constexpr int kWords = bits == 1 || bits == 2 || bits == 4 ? 1 : bits == 3 || bits == 8 ? 2 : 3;
  uint32_t word[kWords];

  // `byte` of a row that is there; zeros beyond its end.
  __device__ __forceinline__ void load(const LayoutQuadArgs& a, const uint8_t* row, int64_t byte) {
    const uint8_t* from = row + (byte & ~int64_t{3});
    const int64_t left = a.row_bytes - (byte & ~int64_t{3});
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      word[i] = 0;
      if (a.aligned) {
        if (4 * i < left) word[i] = __ldg(reinterpret_cast<const uint32_t*>(from) + i);
      } else {
        for (int j = 0; j < 4; ++j)
          if (4 * i + j < left) word[i] |= static_cast<uint32_t>(from[4 * i + j]) << 8 * j;
      }
    }
  }
  __device__ __forceinline__ void clear() {
    for (uint32_t& each : word) each = 0;
  }
  // One a byte.
  __device__ __forceinline__ uint2 codes(int shift) const {
    uint32_t low, high = 0;
    if constexpr (kWords == 1) {
      low = word[0] >> shift;
    } else {
      low = __funnelshift_r(word[0], word[1], shift);
      if constexpr (kWords == 2) high = word[1] >> shift;
      if constexpr (kWords == 3) high = __funnelshift_r(word[1], word[2], shift);
    }
    return make_uint2(spread<bits>(low), spread<bits>(bits == 8 ? high : __funnelshift_r(low, high, 4 * bits)));
  }
};

// Steps of one half of a quad, `apart` from each other: codes of eight neighbours, moved alike; masks cut off what a
// rotation carries into the next byte.
__device__ __forceinline__ uint2 collect(const uint32_t* steps, int apart, int count, const uint8_t* tile) {
  uint2 sum = make_uint2(0, 0);
#pragma unroll 8
  for (int i = 0; i < count; ++i) {
    const uint32_t step = steps[i * apart];
    const uint2 codes = *reinterpret_cast<const uint2*>(tile + (step & 0xffffu));
    const uint32_t by = step >> 16, mask = __byte_perm(step, 0, 0x3333);  // a rotation looks at five bits of `by`
    sum.x |= __funnelshift_l(codes.x, codes.x, by) & mask;
    sum.y |= __funnelshift_l(codes.y, codes.y, by) & mask;
  }
  return sum;
}

constexpr int kPackThreads = 256;

// The words that hold 32 codes, of rows that begin at multiples of four bytes (`wide` 1) or sixteen (2).
template <int bits>
struct ThirtyTwo {
  uint32_t word[bits];

  // The first `left` bytes of them are there.
  __device__ __forceinline__ void load(int wide, const uint8_t* from, int64_t left) {
    if (wide == 2 && left >= 4 * bits) {
      if constexpr (bits % 4 == 0) {
#pragma unroll
        for (int i = 0; i < bits; i += 4) {
          const uint4 v = __ldg(reinterpret_cast<const uint4*>(from + 4 * i));
          word[i] = v.x, word[i + 1] = v.y, word[i + 2] = v.z, word[i + 3] = v.w;
        }
      } else if constexpr (bits % 2 == 0) {
#pragma unroll
        for (int i = 0; i < bits; i += 2) {
          const uint2 v = __ldg(reinterpret_cast<const uint2*>(from + 4 * i));
          word[i] = v.x, word[i + 1] = v.y;
        }
      } else {
#pragma unroll
        for (int i = 0; i < bits; ++i) word[i] = __ldg(reinterpret_cast<const uint32_t*>(from) + i);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < bits; ++i) word[i] = 4 * i < left ? __ldg(reinterpret_cast<const uint32_t*>(from) + i) : 0;
  }
  __device__ __forceinline__ void clear() {
    for (uint32_t& each : word) each = 0;
  }
  // Codes 4 q .. 4 q + 3, one a byte.
  __device__ __forceinline__ uint32_t codes(int q) const {
    const int at = 4 * bits * q, shift = at % 32;
    const uint32_t v = shift + 4 * bits <= 32
                           ? word[at / 32] >> shift
                           : __funnelshift_r(word[at / 32], word[at / 32 + (at / 32 + 1 < bits)], shift);
    return spread<bits>(v);
  }
};

// Codes of a whole tile, or where `left` of four are in the matrix: the others are padding.
__device__ __forceinline__ uint32_t padded(uint32_t codes, int64_t left, uint32_t pad) {
  const uint32_t keep = left >= 4 ? ~0u : left <= 0 ? 0u : (1u << 8 * left) - 1u;
  return (codes & keep) | (pad & ~keep);
}

// Shared memory: steps, quads, words, the tile's codes one a byte, the packed words. Rows that begin at whole words: 32
// codes a thread and turn, those of the next tile fetched before this one's words are put together. Others: eight, four
// turns together.
template <int bits>
__device__ __forceinline__ void pack_by_quads(const LayoutQuadArgs& a) {
  uint32_t* steps = reinterpret_cast<uint32_t*>(dynamic_shared());
  uint16_t* quads = reinterpret_cast<uint16_t*>(steps + (a.step_count + 3) / 4 * 4);
  uint32_t* words = reinterpret_cast<uint32_t*>(quads + (4 * a.quad_count + 7) / 8 * 8);
  uint8_t* tile = reinterpret_cast<uint8_t*>(words + (a.word_count + 3) / 4 * 4);
  uint32_t* packed = reinterpret_cast<uint32_t*>(tile + (a.tile_rows * a.pitch + 15) / 16 * 16);
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < a.step_count; i += kPackThreads) steps[i] = a.steps[i];
  for (int i = thread; i < 4 * a.quad_count; i += kPackThreads) quads[i] = a.quads[i];
  if (!a.vectors)
    for (int i = thread; i < a.word_count; i += kPackThreads) words[i] = a.words[i];
  constexpr uint32_t every = ((1u << bits) - 1u) * 0x01010101u;
  const uint32_t bias = (a.bias & ((1u << bits) - 1u)) * 0x01010101u, pad = a.pad * 0x01010101u;
  const int unit_count = a.tile_rows << a.log_units, unit_mask = (1 << a.log_units) - 1;
  const unsigned total = a.tiles_down * a.tiles_across;
  constexpr int kTurns = 4;
  Eight<bits> fetched[kTurns];
  ThirtyTwo<bits> ahead;
  const int wide_count = unit_count >> 2;
  const auto fetch_wide = [&](unsigned index, int i) {
    const unsigned down = index / a.tiles_across, across = index - down * a.tiles_across;
    const int64_t row = int64_t{down} * a.tile_rows + (i >> (a.log_units - 2));
    const int64_t byte = ((int64_t{across} << (a.log_units - 2)) + (i & (unit_mask >> 2))) * (4 * bits);
    if (i < wide_count && row < a.rows && byte < a.row_bytes)
      ahead.load(a.wide, a.matrix + row * a.row_bytes + byte, a.row_bytes - byte);
    else ahead.clear();
  };
  const auto fetch = [&](unsigned index, int first) {
    const unsigned down = index / a.tiles_across, across = index - down * a.tiles_across;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int i = first + turn * kPackThreads;
      const int64_t row = int64_t{down} * a.tile_rows + (i >> a.log_units);
      const int64_t byte = ((int64_t{across} << a.log_units) + (i & unit_mask)) * bits;
      if (i < unit_count && row < a.rows && byte < a.row_bytes)
        fetched[turn].load(a, a.matrix + row * a.row_bytes, byte);
      else fetched[turn].clear();
    }
  };
  const auto fetch_first = [&](unsigned index) {
    if (a.wide) fetch_wide(index, thread);
    else fetch(index, thread);
  };
  if (blockIdx.x < total) fetch_first(blockIdx.x);
  for (unsigned index = blockIdx.x; index < total; index += gridDim.x) {
    const unsigned down = index / a.tiles_across, across = index - down * a.tiles_across;
    const int64_t row0 = int64_t{down} * a.tile_rows, column0 = int64_t{across} << (a.log_units + 3);
    const bool edge = row0 + a.tile_rows > a.rows || column0 + (8 << a.log_units) > a.columns;
    for (int i = thread; a.wide && i < wide_count; i += kPackThreads) {
      if (i != thread) fetch_wide(index, i);
      const int r = i >> (a.log_units - 2), u = i & (unit_mask >> 2);
      uint2* const to = reinterpret_cast<uint2*>(tile + r * a.pitch + 32 * u);
      const int64_t left = row0 + r < a.rows ? a.columns - column0 - 32 * u : 0;
#pragma unroll
      for (int q = 0; q < 8; q += 2) {
        uint2 codes = make_uint2(ahead.codes(q), ahead.codes(q + 1));
        if (bias) codes = make_uint2(__vadd4(codes.x, bias) & every, __vadd4(codes.y, bias) & every);
        if (edge) codes = make_uint2(padded(codes.x, left - 4 * q, pad), padded(codes.y, left - 4 * q - 4, pad));
        to[q / 2] = codes;
      }
    }
    for (int first = thread; !a.wide && first < unit_count; first += kTurns * kPackThreads) {
      if (first != thread) fetch(index, first);
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        const int i = first + turn * kPackThreads, r = i >> a.log_units, u = i & unit_mask;
        if (i >= unit_count) break;
        const unsigned byte = ((across << a.log_units) + static_cast<unsigned>(u)) * bits;
        uint2 codes = fetched[turn].codes(static_cast<int>(8 * (byte & 3u)));
        if (bias) {
          codes.x = __vadd4(codes.x, bias) & every;
          codes.y = __vadd4(codes.y, bias) & every;
        }
        if (edge) {
          const int64_t left = row0 + r < a.rows ? a.columns - column0 - 8 * u : 0;
          codes = make_uint2(padded(codes.x, left, pad), padded(codes.y, left - 4, pad));
        }
        *reinterpret_cast<uint2*>(tile + r * a.pitch + 8 * u) = codes;
      }
    }
    __syncthreads();
    if (index + gridDim.x < total) fetch_first(index + gridDim.x);
    // Two threads a quad, a half each; then each has the words that it makes of both.
    for (int first = 0; first < 2 * a.quad_count; first += kPackThreads) {
      const int half = first + thread, q = half >> 1;
      const bool upper = half & 1, mine = half < 2 * a.quad_count;
      uint2 sum = make_uint2(0, 0);
      if (mine) {
        // As many as codes of a byte in the layouts of whole codes.
        if (a.half_steps == 8 / bits) sum = collect(steps + half, 2 * a.quad_count, 8 / bits, tile);
        else sum = collect(steps + half, 2 * a.quad_count, a.half_steps, tile);
      }
      const uint32_t other = __shfl_xor_sync(~0u, upper ? sum.x : sum.y, 1);
      if (mine) {
        const uint32_t low = upper ? other : sum.x, high = upper ? sum.y : other;
        const uint16_t* word = quads + 4 * q + 2 * upper;
        packed[word[0]] = __byte_perm(low, high, 0x5140);
        packed[word[1]] = __byte_perm(low, high, 0x7362);
      }
    }
    __syncthreads();
    uint32_t* out = reinterpret_cast<uint32_t*>(a.packed) + a.outer_rows[down] + a.outer_columns[across];
    if (a.vectors) {
      uint4* to = reinterpret_cast<uint4*>(out + a.words[0]);
      for (int i = thread; i < a.word_count / 4; i += kPackThreads)
        __stcs(to + i, reinterpret_cast<const uint4*>(packed)[i]);
    } else {
      for (int i = thread; i < a.word_count; i += kPackThreads) __stcs(out + words[i], packed[i]);
    }
  }
}

// Words that are bits of one row as they stand there (bitstreams along rows, or along columns of the output): rows of
// `tiles` tiles side by side go to shared memory as words, and every word of the output is cut out of two of them. A
// word at the matrix's edge is made code by code.
__device__ __forceinline__ void pack_by_runs(const LayoutRunsArgs& a) {
  uint32_t* staged = reinterpret_cast<uint32_t*>(dynamic_shared());
  const int thread = static_cast<int>(threadIdx.x);
  const unsigned groups = (a.tiles_across + a.tiles - 1) / a.tiles, total = a.tiles_down * groups;
  const Piece* pieces = static_cast<const Piece*>(a.general.pieces);
  const int64_t tile_bytes = a.general.tile_columns * a.general.bits / 8;
  const uint32_t every = a.general.bias ? ~0u : 0u;
  for (unsigned index = blockIdx.x; index < total; index += gridDim.x) {
    const unsigned down = index / groups, across = (index - down * groups) * a.tiles;
    const int count = static_cast<int>(min(a.tiles, a.tiles_across - across));
    const int64_t row0 = int64_t{down} * a.general.tile_rows, byte0 = across * tile_bytes;
    // Words that begin inside the tiles' part of a row; what is cut out of the last may reach one further.
    const int width = static_cast<int>((count * tile_bytes + 3) / 4);
    for (int r = thread >> 5; r < static_cast<int>(a.general.tile_rows); r += kPackThreads / 32) {
      const uint8_t* row = a.general.matrix + (row0 + r) * a.general.row_bytes + byte0;
      const int64_t there = row0 + r < a.general.rows ? a.general.row_bytes - byte0 : 0;
      for (int w = thread & 31; w < width; w += 32) {
        uint32_t v = 0;
        if (a.aligned && 4 * w + 4 <= there) {
          v = __ldg(reinterpret_cast<const uint32_t*>(row) + w);
        } else {
          for (int j = 0; j < 4; ++j)
            if (4 * w + j < there) v |= static_cast<uint32_t>(row[4 * w + j]) << 8 * j;
        }
        staged[r * a.pitch + w] = v;
      }
    }
    __syncthreads();
    const bool rows_end = row0 + a.general.tile_rows > a.general.rows;
    for (int t = 0; t < count; ++t) {
      const int64_t column0 = (across + t) * a.general.tile_columns;
      const bool inside = !rows_end && column0 + a.general.tile_columns <= a.general.columns;
      uint32_t* const out = reinterpret_cast<uint32_t*>(a.general.packed) + a.general.outer_rows[down] +
                            a.general.outer_columns[across + t];
      const uint32_t bit0 = static_cast<uint32_t>(t) * static_cast<uint32_t>(8 * tile_bytes);
#pragma unroll 4
      for (int w = thread; w < static_cast<int>(a.general.word_count); w += kPackThreads) {
        uint32_t word = 0;
        if (inside) {
          const uint4 run = __ldg(reinterpret_cast<const uint4*>(a.runs) + w);
          const uint32_t bit = run.x + bit0;
          const uint32_t* from = staged + run.y * static_cast<uint32_t>(a.pitch) + bit / 32;
          word = (__funnelshift_r(from[0], from[1], bit & 31) & run.z) ^ (run.w & every);
        } else {
          for (uint32_t j = a.general.first[w]; j < a.general.first[w + 1]; ++j) {
            const Piece piece = pieces[j];
            const uint32_t v = load_element(a.general, row0 + piece.element / a.general.tile_columns,
                                            column0 + piece.element % a.general.tile_columns);
            word |= static_cast<uint32_t>(static_cast<uint64_t>(v) << piece.shift >> 32) & piece.mask;
          }
        }
        __stcs(out + __ldg(a.words + w), word);
      }
    }
    __syncthreads();
  }
}

}  // namespace

#define LPQ_PACK_QUADS(bits)                                                                                  \
  extern "C" __global__ void __launch_bounds__(kPackThreads) lpq_layout_pack_quads_##bits(LayoutQuadArgs a) { \
    pack_by_quads<bits>(a);                                                                                   \
  }
LPQ_PACK_QUADS(1)
LPQ_PACK_QUADS(2)
LPQ_PACK_QUADS(3)
LPQ_PACK_QUADS(4)
LPQ_PACK_QUADS(5)
LPQ_PACK_QUADS(6)
LPQ_PACK_QUADS(7)
LPQ_PACK_QUADS(8)
extern "C" __global__ void __launch_bounds__(kPackThreads) lpq_layout_pack_runs(LayoutRunsArgs a) { pack_by_runs(a); }

extern "C" __global__ void lpq_layout_unpack(LayoutArgs a) {
  const int64_t per_row = a.stream ? a.row_bytes : a.columns, total = a.rows * per_row;
  for (int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; index < total;
       index += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t row = index / per_row, i = index % per_row;
    uint8_t* line = a.matrix + row * a.row_bytes;
    if (a.stream) {
      const int64_t bit = i * 8;
      uint32_t byte = 0;
      int64_t column = bit / a.bits;
      for (int at = static_cast<int>(column * a.bits - bit); at < 8 && column < a.columns; ++column, at += a.bits) {
        const uint32_t v = stored_element(a, row, column);
        byte |= at < 0 ? v >> -at : v << at;
      }
      line[i] = static_cast<uint8_t>(byte);
      continue;
    }
    const uint32_t v = stored_element(a, row, i);
    if (a.bits <= 8) line[i] = static_cast<uint8_t>(v);
    else if (a.bits == 16) reinterpret_cast<uint16_t*>(line)[i] = static_cast<uint16_t>(v);
    else reinterpret_cast<uint32_t*>(line)[i] = v;
  }
}

// fault unless every order[i] names one of the columns.
extern "C" __global__ void lpq_layout_check_order(const int32_t* order, int64_t columns, uint32_t* fault) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < columns;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    if (order[i] < 0 || order[i] >= columns) *fault = 1;
}

}  // namespace lpq::cuda
