// From a pack layout (data) to tables: which elements make up each output word.
//
// An element (row, column) of a rows x columns matrix, `bits` wide, lies at
//     address + p        without units,      address + (p / unit) * unit_stride + p % unit      with units,
// where address and p are sums of digit * stride over the modes of the two dimensions (address modes, stream modes).
// A word order permutes every `order.size()` bits of the streams, before they are cut into units.
// Units are what lets one rule hold GPTQ's columns (a bitstream whose 32-bit words lie N words apart) and Tilus' tiles.
//
// The plan cuts the matrix into equal tiles such that a tile's elements fill whole output words that no other tile
// touches, and that tiles differ by an offset only. One table of a tile then serves all, and tiles are independent.
#pragma once
#include <cstdint>
#include <vector>

#include "lpq/exec.h"

namespace lpq::layout {

struct Mode {
  int dim;         // 0: rows, 1: columns
  int64_t size;    // most significant first within a dimension
  int64_t stride;  // bits
  bool stream;
};

struct Spec {
  int bits = 0;  // of an element: 1..8, 16 or 32
  std::vector<Mode> modes;
  int64_t unit = 0, unit_stride = 0;
  std::vector<int32_t> order;  // stream bit p goes to p - q + order[q], q = p % order.size(); empty: where it is
  int64_t base = 0;            // bits before the first element
  int64_t extent[2] = {0, 0};  // rows, columns: the products of the modes
  int64_t out_bits = 0;
  int word = 0;  // widest output word allowed; 0: any
};

// One run of an element's bits in a word: word |= (element << shift >> 32) & mask, in 64 bits. A run that begins at bit
// i of the element and bit j of the word has shift = 32 + j - i.
struct Piece {
  uint32_t element;  // row * tile columns + column
  uint32_t mask;
  uint32_t shift;
};

struct Plan {
  int word_bits = 32;
  int64_t tile[2] = {1, 1};
  std::vector<int64_t> outer[2];     // word offset of each row of tiles and of each column of tiles
  std::vector<int64_t> words;        // word offsets of a tile, ascending
  std::vector<uint32_t> first;       // pieces of words[i]: pieces[first[i] .. first[i+1])
  std::vector<Piece> pieces;         // in order of bit position
  std::vector<uint16_t> aligned;     // element of each slot, when every word holds whole elements only
  bool fills = false;                // every word of the output is written
  int64_t tiles() const { return static_cast<int64_t>(outer[0].size() * outer[1].size()); }
};

// Reads bits, modeDims, modeSizes, modeStrides, modeStream, unit, unitStride, wordOrder, base, word. Throws LPQ_NATIVE_ARGUMENT
// when elements could overlap or leave `out_bytes`.
Spec read_spec(const Params& params, size_t out_bytes);

// `column_bits`: a tile's columns fill a multiple of so many bits (8 when tiles write parts of bitstream rows), else 1.
Plan make_plan(const Spec& spec, int column_bits);

}  // namespace lpq::layout
