// How a warp reads 64 output features and 32 input features of a Sparse-MARLIN module: lane by lane, for
// mma.sp.m16n8k32 with 16-bit elements, whose operand A is 16 x 32 in 2:4 form. Written from the PTX ISA ("Matrix
// Fragments for sparse mma.m16n8k32") and the format's description (shared spec "packed layouts", section 2); nothing
// of the packer's algebra.
//
// Each of four products j covers 16 of the 64 features: row r is feature 8 (r % 8) + 4 (r / 8) + j. A lane's eight
// codes of a product are those of the dense fragment A, over the 16 compressed columns. Metadata: threads 4 g + 2 s and
// 4 g + 2 s + 1 give that of rows g (low half) and g + 8 (high half), of the first and the last 16 input features; s is
// the sparsity selector.
#pragma once
#include <cstdint>

#include "cpu/verify/fragments.h"

namespace lpq::verify {

constexpr int kSparseN = 64, kSparseK = 32;

// The feature of row r of product j.
constexpr int sparse_feature(int j, int row) { return 8 * (row % 8) + 4 * (row / 8) + j; }

// The words of one tile: a lane's codes stand together (4 or 8 words), its metadata 32 words apart.
struct SparseTile {
  const uint32_t* words;  // of the codes
  const uint32_t* metadata;
  int bits;

  // Code i of a lane's fragment of product j, with fragment_a's numbering.
  uint32_t code(int lane, int j, int i) const {
    const int right = i & 1, below = i >> 1 & 1, later = i >> 2;
    if (bits == 4) return words[lane * 4 + j] >> 4 * (4 * right + 2 * below + later) & 0xfu;
    return words[lane * 8 + 2 * j + below] >> 8 * (2 * right + later) & 0xffu;
  }
  // The four bits of row r of product j for input features 4 quad .. 4 quad + 3.
  uint32_t places(int j, int row, int quad) const {
    const int thread = 4 * (row % 8) + 2 * (j & 1) + quad / 4;  // the selector is j & 1
    return metadata[32 * (j >> 1) + thread] >> (16 * (row / 8) + 4 * (quad % 4)) & 0xfu;
  }
};

// The tile of strip nt (of `strips`) and step kt.
inline SparseTile sparse_tile(const uint32_t* words, const uint32_t* metadata, int bits, int64_t strips, int64_t nt,
                              int64_t kt) {
  const int64_t at = kt * strips + nt;
  return {words + at * 32 * bits, metadata + at * 64, bits};
}

}  // namespace lpq::verify
