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
