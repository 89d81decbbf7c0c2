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
#include <memory>
#include <vector>

#include "lpq/arguments.h"

namespace lpq::layout {

struct Mode {
  int dim;         // 0: rows, 1: columns
  int64_t size;    // most significant first within a dimension
  int64_t stride;  // bits
  bool stream;
  bool operator==(const Mode&) const = default;
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
  bool operator==(const Spec&) const = default;
};

// One run of an element's bits in a word: word |= (element << shift >> 32) & mask, in 64 bits. A run that begins at bit
// i of the element and bit j of the word has shift = 32 + j - i.
struct Piece {
  uint32_t element;  // row * tile columns + column
  uint32_t mask;
  uint32_t shift;
};

// Two pieces at once: element e in the lower half of a 32-bit word and e + 1, its neighbour in a row of the tile, 16
// bits above it. In a tile of 16-bit elements one load has both: word |= (load32(&tile[element]) << shift >> 32) &
// mask.
using Pair = Piece;

// Bits that are neighbours in a row of the tile, as a bitstream, and in the word:
// word |= (load64(row bytes + byte) >> drop & mask) << bit.
struct Run {
  uint32_t byte, mask;
  uint8_t drop, bit;
};

// Bytes of a row of the tile as a bitstream, with room to load 8 bytes anywhere.
inline int64_t run_row_bytes(int64_t columns, int bits) { return (columns * bits + 7) / 8 + 8; }

// Four words whose pairs are neighbours too (the lanes of a group of four in a fragment): elements e .. e + 7 of a row
// of the tile, byte codes, in one load. Byte 2t is word t's lower half, byte 2t + 1 its upper. A step adds
// rotl(load64(tile + element), rotate) & mask to the lower or the upper eight bits of all eight halves; the mask is the
// same for every byte, so that what a rotation carries from a byte into the next is cut off.
struct QuadStep {
  uint32_t element;
  uint32_t rotate;
  uint64_t mask;
};
struct Quad {
  uint32_t word[4];
  uint32_t middle, end;  // of its steps: those for the lower bits come first
};

// Halves of quads side by side: eight bytes of a quad's words (bytes 0 and 2, or 1 and 3, of all four) are a lane, or
// `fold` lanes that are or-ed in the end; four lanes are eight bytes apart in the tile at every step, so that one load
// of 32 bytes has them:
// lane l: sum |= codes << bits * (l % fold * steps + step). Where pairs stand evenly only.
struct LaneGroup {
  uint32_t half[4];  // 2 * quad, + 1 for its upper bytes; 4 / fold of them
};

struct Plan {
  int word_bits = 32;
  int64_t tile[2] = {1, 1};
  std::vector<int64_t> outer[2];  // word offset of each row of tiles and of each column of tiles
  std::vector<int64_t> words;     // word offsets of a tile, ascending
  std::vector<uint32_t> first;    // pieces of words[i]: pieces[first[i] .. first[i+1])
  std::vector<Piece> pieces;      // in order of bit position
  std::vector<uint16_t> aligned;  // element of each slot, when every word holds whole elements only
  std::vector<Pair> pairs;        // of all words, when every piece is in one; as many a word as half its pieces
  int pair_step = 0;        // pairs stand 0, 1, 2, ... times so many bits into each half of a word; 0: they do not
  std::vector<Quad> quads;  // of all words, when every word of pairs is in one
  std::vector<QuadStep> quad_steps;
  std::vector<LaneGroup> lane_groups;
  std::vector<uint32_t> lane_elements;  // lane_steps of each group: the element of lane 0
  int lane_fold = 0, lane_steps = 0;
  std::vector<Run> runs;            // of all words, when they are far fewer than the pieces
  std::vector<uint32_t> run_first;  // runs of words[i]: runs[run_first[i] .. run_first[i+1])
  bool fills = false;               // every word of the output is written
  int64_t tiles() const { return static_cast<int64_t>(outer[0].size() * outer[1].size()); }
};

// Reads bits, modeDims, modeSizes, modeStrides, modeStream, unit, unitStride, wordOrder, base, word. Throws
// LPQ_NATIVE_ARGUMENT when elements could overlap or leave `out_bytes`.
Spec read_spec(Arguments& a, size_t out_bytes);

// `column_bits`: a tile's columns fill a multiple of so many bits (8 when tiles write parts of bitstream rows), else 1.
Plan make_plan(const Spec& spec, int column_bits);

// The same; the last few are kept, since modules of one shape come in a row. Any thread.
std::shared_ptr<const Plan> plan_for(const Spec& spec, int column_bits);

}  // namespace lpq::layout
