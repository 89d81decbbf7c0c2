// Arguments of the layout kernels (pack.cu), shared with the host. Tables are those of lpq/layout_plan.h.
#pragma once
#include <cstdint>

namespace lpq::cuda {

// A run of an element's bits in a word, by element (unpacking): element |= ((word & mask) << 32 >> shift).
struct LayoutRun {
  uint32_t word;  // index into words
  uint32_t mask, shift;
};

struct LayoutArgs {
  uint8_t* matrix;
  int64_t rows, columns, row_bytes;
  int bits, stream;
  uint32_t bias, pad;
  const int32_t* order;  // null: as they are
  uint8_t* packed;
  int word_bytes;
  int64_t tile_rows, tile_columns, tiles_down, tiles_across;
  const int64_t *outer_rows, *outer_columns;  // word offsets
  const int64_t* words;                       // word offsets inside a tile
  int64_t word_count;
  const uint32_t* first;  // pack: pieces of a word; unpack: runs of an element
  const void* pieces;     // layout::Piece / LayoutRun
};

// Four words of codes at a time (lpq/layout_plan.h, Quad) out of a tile of bytes in shared memory, whose rows lie
// `pitch` bytes apart so that banks do not collide. Of a matrix of bitstream rows only.
struct LayoutQuadArgs {
  const uint8_t* matrix;
  int64_t rows, columns, row_bytes;
  uint32_t bias, pad;
  uint8_t* packed;
  unsigned tiles_down, tiles_across;
  const int64_t *outer_rows, *outer_columns;  // word offsets
  int tile_rows, pitch;
  int log_units;  // a tile has 8 << log_units columns
  int aligned;    // the matrix and its rows begin at multiples of four bytes
  int wide;  // so do parts of 32 codes, of which tiles are made: 1; the matrix and its rows at multiples of sixteen: 2
  int word_count;
  const uint32_t* words;  // word offsets inside a tile
  int vectors;            // they follow each other, and tiles begin at multiples of four words
  int quad_count;
  const uint16_t* quads;  // four words each
  int half_steps, step_count;
  const uint32_t*
      steps;  // [half_steps][quad][lower, upper bytes]: byte in the tile | rotation << 16 | mask of a byte << 24
};

// Words of which each is one run of bits of a row (lpq/layout_plan.h, Run): its first bit in the tile's row, the row,
// its mask, and the upper bits of its codes, which a bias of 2^(bits - 1) flips.
struct alignas(16) LayoutRunWord {
  uint32_t bit, row, mask, flip;
};
struct LayoutRunsArgs {
  LayoutArgs general;  // for words at the edge
  unsigned tiles_down, tiles_across;
  unsigned tiles;             // side by side in shared memory
  int pitch;                  // words from one row there to the next
  int aligned;                // the matrix, its rows and its tiles begin at multiples of four bytes
  const LayoutRunWord* runs;  // of each word
  const uint32_t* words;      // word offsets inside a tile
};

}  // namespace lpq::cuda
