// layout_pack and layout_unpack by the tables of a plan: a thread makes a word (packing) or a stored element or byte of the
// matrix (unpacking), so nothing is written twice and nothing needs an order.
#include "cuda/layout/pack.h"

namespace lpq::cuda {
namespace {

struct Piece {  // layout::Piece
  uint32_t element, mask, shift;
};

__device__ __forceinline__ uint32_t mask_of(int bits) { return bits >= 32 ? ~0u : (1u << bits) - 1u; }

__device__ __forceinline__ uint32_t load_element(const LayoutArgs& a, int64_t row, int64_t column) {
  if (row >= a.rows || column >= a.columns) return a.pad;
  const uint8_t* line = a.matrix + row * a.row_bytes;
  if (a.order) column = min(max(a.order[column], 0), static_cast<int32_t>(a.columns) - 1);  // lpq_layout_check_order complains
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
  if (word_bytes == 4)
    reinterpret_cast<uint32_t*>(packed)[at] = word;
  else if (word_bytes == 2)
    reinterpret_cast<uint16_t*>(packed)[at] = static_cast<uint16_t>(word);
  else
    packed[at] = static_cast<uint8_t>(word);
}
__device__ __forceinline__ uint32_t load_word(const uint8_t* packed, int word_bytes, int64_t at) {
  return word_bytes == 4 ? reinterpret_cast<const uint32_t*>(packed)[at] : word_bytes == 2 ? reinterpret_cast<const uint16_t*>(packed)[at] : packed[at];
}

__device__ __forceinline__ uint32_t stored_element(const LayoutArgs& a, int64_t row, int64_t column) {
  const int64_t tile_row = row / a.tile_rows, tile_column = column / a.tile_columns;
  const int64_t element = (row % a.tile_rows) * a.tile_columns + column % a.tile_columns;
  const int64_t base = a.outer_rows[tile_row] + a.outer_columns[tile_column];
  const LayoutRun* runs = static_cast<const LayoutRun*>(a.pieces);
  uint32_t v = 0;
  for (uint32_t i = a.first[element]; i < a.first[element + 1]; ++i)
    v |= static_cast<uint32_t>((static_cast<uint64_t>(load_word(a.packed, a.word_bytes, base + a.words[runs[i].word]) & runs[i].mask) << 32) >> runs[i].shift);
  return (v - a.bias) & mask_of(a.bits);
}

}  // namespace

extern "C" __global__ void lpq_layout_pack(LayoutArgs a) {
  const int64_t total = a.tiles_down * a.tiles_across * a.word_count;
  const Piece* pieces = static_cast<const Piece*>(a.pieces);
  for (int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; index < total; index += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t tile = index / a.word_count, w = index % a.word_count;
    const int64_t down = tile / a.tiles_across, across = tile % a.tiles_across;
    uint32_t word = 0;
    for (uint32_t i = a.first[w]; i < a.first[w + 1]; ++i) {
      const Piece piece = pieces[i];
      const uint32_t v = load_element(a, down * a.tile_rows + piece.element / a.tile_columns, across * a.tile_columns + piece.element % a.tile_columns);
      word |= static_cast<uint32_t>(static_cast<uint64_t>(v) << piece.shift >> 32) & piece.mask;
    }
    store_word(a.packed, a.word_bytes, a.outer_rows[down] + a.outer_columns[across] + a.words[w], word);
  }
}

namespace {

// Four codes in the low 4 * bits bits of v -> one a byte: halves move apart, then quarters. The masks are of two codes and of one, at
// their new places.
struct Spread {
  uint32_t pair, single, all;
  int up2, up1;
  __device__ explicit Spread(int bits) {
    const uint32_t two = (1u << 2 * bits) - 1u, one = (1u << bits) - 1u;
    pair = two;
    single = one | one << 16;
    all = one * 0x01010101u;
    up2 = 16 - 2 * bits;
    up1 = 8 - bits;
  }
  __device__ uint32_t operator()(uint32_t v) const {
    v = (v & pair) | ((v << up2) & ~pair);
    v = (v & single) | ((v << up1) & ~single);
    return v & all;
  }
};

// The bytes of a tile's rows as they are in the matrix, zeros where there are none.
__device__ __forceinline__ void stage_stream(const LayoutQuadArgs& a, uint8_t* raw, int64_t row0, int64_t byte0, int segment) {
  const int per_row = segment / a.load_bytes, count = a.tile_rows * per_row;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int r = i / per_row, at = i % per_row * a.load_bytes;
    const bool inside = row0 + r < a.rows && byte0 + at + a.load_bytes <= a.row_bytes;
    const uint8_t* from = a.matrix + (row0 + r) * a.row_bytes + byte0 + at;
    uint8_t* to = raw + r * segment + at;
    if (a.load_bytes == 16)
      *reinterpret_cast<uint4*>(to) = inside ? __ldcs(reinterpret_cast<const uint4*>(from)) : make_uint4(0, 0, 0, 0);
    else if (a.load_bytes == 4)
      *reinterpret_cast<uint32_t*>(to) = inside ? __ldcs(reinterpret_cast<const uint32_t*>(from)) : 0u;
    else
      *to = inside ? *from : uint8_t{0};
  }
}

__device__ __forceinline__ uint32_t rotate_left(uint32_t v, uint32_t by) { return __funnelshift_l(v, v, by); }

// Steps of one half of a quad: codes of eight neighbours, moved alike; masks cut off what a rotation carries into the next byte.
__device__ __forceinline__ uint2 collect(const uint32_t* steps, int begin, int end, const uint8_t* tile) {
  uint2 sum = make_uint2(0, 0);
  for (int i = begin; i < end; ++i) {
    const uint32_t step = steps[i];
    const uint2 codes = *reinterpret_cast<const uint2*>(tile + (step & 0xffffu));
    const uint32_t by = step >> 16 & 31u, mask = __byte_perm(step, 0, 0x3333);
    sum.x |= rotate_left(codes.x, by) & mask;
    sum.y |= rotate_left(codes.y, by) & mask;
  }
  return sum;
}

}  // namespace

// Shared memory: steps, quads, words, the tile's bytes of the matrix (and 8 more), its codes one a byte, the packed words.
extern "C" __global__ void __launch_bounds__(256) lpq_layout_pack_quads(LayoutQuadArgs a) {
  extern __shared__ uint4 shared_bytes[];
  const int segment = a.tile_columns * a.bits / 8;
  uint32_t* steps = reinterpret_cast<uint32_t*>(shared_bytes);
  uint16_t* quads = reinterpret_cast<uint16_t*>(steps + (a.step_count + 3) / 4 * 4);
  uint32_t* words = reinterpret_cast<uint32_t*>(quads + (6 * a.quad_count + 7) / 8 * 8);
  uint8_t* raw = reinterpret_cast<uint8_t*>(words + (a.word_count + 3) / 4 * 4);
  uint8_t* tile = raw + (a.tile_rows * segment + 8 + 15) / 16 * 16;
  uint32_t* packed = reinterpret_cast<uint32_t*>(tile + (a.tile_rows * a.pitch + 15) / 16 * 16);
  for (int i = threadIdx.x; i < a.step_count; i += blockDim.x) steps[i] = a.steps[i];
  for (int i = threadIdx.x; i < 6 * a.quad_count; i += blockDim.x) quads[i] = a.quads[i];
  for (int i = threadIdx.x; i < a.word_count; i += blockDim.x) words[i] = a.words[i];
  const Spread spread(a.bits);
  const uint32_t bias = (a.bias & ((1u << a.bits) - 1u)) * 0x01010101u, pad = a.pad * 0x01010101u;
  const int units = a.tile_columns / 8, unit_count = a.tile_rows * units;
  const int64_t total = a.tiles_down * a.tiles_across;
  for (int64_t index = blockIdx.x; index < total; index += gridDim.x) {
    const int64_t down = index / a.tiles_across, across = index % a.tiles_across;
    const int64_t row0 = down * a.tile_rows, column0 = across * a.tile_columns;
    stage_stream(a, raw, row0, column0 * a.bits / 8, segment);
    __syncthreads();
    const bool edge = row0 + a.tile_rows > a.rows || column0 + a.tile_columns > a.columns;
    for (int i = threadIdx.x; i < unit_count; i += blockDim.x) {
      const int r = i / units, u = i % units;
      // Eight codes are `bits` bytes: of three words at most, the third only where the eight are more than 32 bits.
      const int byte = r * segment + u * a.bits;
      const uint32_t* from = reinterpret_cast<const uint32_t*>(raw + (byte & ~3));
      const int shift = 8 * (byte & 3);
      const uint32_t w0 = from[0], w1 = from[1];
      const uint32_t low = __funnelshift_r(w0, w1, shift);
      uint32_t high = w1 >> shift;
      if (a.bits > 4) high = __funnelshift_r(w1, from[2], shift);
      uint2 codes;
      codes.x = spread(low);
      codes.y = spread(a.bits == 8 ? high : __funnelshift_r(low, high, 4 * a.bits));
      if (bias) {
        codes.x = __vadd4(codes.x, bias) & spread.all;
        codes.y = __vadd4(codes.y, bias) & spread.all;
      }
      if (edge) {
        const int64_t left = row0 + r < a.rows ? a.columns - column0 - 8 * u : 0;
        const uint32_t keep_x = left >= 4 ? ~0u : left <= 0 ? 0u : (1u << 8 * left) - 1u;
        const uint32_t keep_y = left >= 8 ? ~0u : left <= 4 ? 0u : (1u << 8 * (left - 4)) - 1u;
        codes.x = (codes.x & keep_x) | (pad & ~keep_x);
        codes.y = (codes.y & keep_y) | (pad & ~keep_y);
      }
      *reinterpret_cast<uint2*>(tile + r * a.pitch + 8 * u) = codes;
    }
    __syncthreads();
    for (int q = threadIdx.x; q < a.quad_count; q += blockDim.x) {
      const int begin = q == 0 ? 0 : quads[6 * q - 1], middle = quads[6 * q + 4], end = quads[6 * q + 5];
      const uint2 low = collect(steps, begin, middle, tile), high = collect(steps, middle, end, tile);
      packed[quads[6 * q]] = __byte_perm(low.x, high.x, 0x5140);
      packed[quads[6 * q + 1]] = __byte_perm(low.x, high.x, 0x7362);
      packed[quads[6 * q + 2]] = __byte_perm(low.y, high.y, 0x5140);
      packed[quads[6 * q + 3]] = __byte_perm(low.y, high.y, 0x7362);
    }
    __syncthreads();
    uint32_t* out = reinterpret_cast<uint32_t*>(a.packed) + a.outer_rows[down] + a.outer_columns[across];
    for (int i = threadIdx.x; i < a.word_count; i += blockDim.x) __stcs(out + words[i], packed[i]);
  }
}

extern "C" __global__ void lpq_layout_unpack(LayoutArgs a) {
  const int64_t per_row = a.stream ? a.row_bytes : a.columns, total = a.rows * per_row;
  for (int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; index < total; index += static_cast<int64_t>(gridDim.x) * blockDim.x) {
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
    if (a.bits <= 8)
      line[i] = static_cast<uint8_t>(v);
    else if (a.bits == 16)
      reinterpret_cast<uint16_t*>(line)[i] = static_cast<uint16_t>(v);
    else
      reinterpret_cast<uint32_t*>(line)[i] = v;
  }
}

// fault unless every order[i] names one of the columns.
extern "C" __global__ void lpq_layout_check_order(const int32_t* order, int64_t columns, uint32_t* fault) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < columns; i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    if (order[i] < 0 || order[i] >= columns) *fault = 1;
}

}  // namespace lpq::cuda
