// What the kernels of latent attention's cache are told, and how much of it a block takes at once: for the host that
// launches them, and the kernels.
#pragma once
#include "cuda/attention/kv_shape.h"

namespace lpq::cuda {

constexpr int kLatentDims = 512, kLatentRotary = 64, kLatentWidth = kLatentDims + kLatentRotary;  // at most
constexpr int kLatentThreads = 256, kLatentWarps = kLatentThreads / 32;

// All a launch is told. A page: codes, then numbers, then rotary dims, each token after token.
struct LatentArgs {
  const unsigned short* q;     // f16, or bf16, [B, queries, heads, latent + rotary]
  const unsigned char* pages;  // page_bytes each
  const int *table, *lengths;  // [B, table_pages], [B]
  float* partial;              // [tiles of rows, splits]: a record is most[ROWS], total[ROWS], sums[ROWS][512]
  unsigned* fault;             // set where the table or a length is none
  void* y;                     // [B, queries, heads, latent]
  long long page_bytes;
  int numbers, rope;  // where they begin in a page
  int bits, group_shift, number_row, latent, rotary, page_tokens, table_pages, page_count;
  int heads, queries, rows, row_tiles, splits, store, bf16_queries;
  float scale;  // of scores, times log2 e
};

// Quantizes and packs tokens: of a prompt, or one of each sequence, whose lengths grow.
struct LatentPackArgs {
  const unsigned short *c, *rotary_dims;  // f16 [tokens, latent], [tokens, rotary]
  const int* table;                       // pages of the sequence; of appending [tokens, table_pages]
  unsigned char* pages;
  int* lengths;                  // of appending alone
  unsigned *fault, *fault_page;  // set where a number is NaN or infinity; where the table or a length leads to no page
  long long page_bytes;
  int numbers, rope, group, number_row, latent, rotary, page_tokens, table_pages, page_count, first, tokens;
};

// A block takes ROWS rows (a row is a query head of a query token) and tiles of TOKENS tokens. Eight warps: for S = Q
// Kᵀ kRowWarps x kTokenWarps x kParts, of 16 kRowTiles rows, 16 tokens, and every kParts-th sixteen of dims; for O = P
// C each has all rows and 64 dims.
template <int ROWS, int TOKENS>
struct LatentShape {
  static constexpr int kRows = ROWS, kTokens = TOKENS, kTiles = ROWS / 16;
  static constexpr int kRowTiles = ROWS == 64 ? 2 : 1, kRowWarps = ROWS / (16 * kRowTiles), kTokenWarps = TOKENS / 16,
                       kParts = kLatentWarps / (kRowWarps * kTokenWarps);
  // Operands of queries that stay in registers, where rows are few: sixteens of dims of a part, at most.
  static constexpr int kHeld = ROWS == 16 ? kLatentWidth / 16 / kParts : 0;
  static constexpr int kOfRow = kLatentThreads / ROWS,
                       kOwn = TOKENS / kOfRow;  // threads of a row's scores; of these one
  static constexpr int kRecord = 2 * ROWS + ROWS * kLatentDims;
  // Shared memory: queries, halves of a tile's latents, rotary dims of two tiles, scores; then codes and numbers of the
  // next tile, or its 16-bit latents, which take turns with the halves. A row of scores ends with what the sums of its
  // row are multiplied by, in bytes that keep eight rows in different banks.
  static constexpr int kFactor = TOKENS * 4, kScoreRow = kFactor + 16;
  static constexpr int kLatents = ROWS * kLatentWidth * 2, kHalves = TOKENS * kLatentDims * 2,
                       kRope = kLatents + kHalves, kRopeTile = TOKENS * kLatentRotary * 2,
                       kScores = kRope + 2 * kRopeTile, kStage = kScores + kParts * ROWS * kScoreRow;
  static_assert(kRowWarps * kTokenWarps * kParts == kLatentWarps && kOwn >= 1 && kOfRow <= 32);
  static constexpr int stage(int bits, int group) {
    return bits == 16 ? kHalves : TOKENS * (kLatentDims * bits / 8 + 4 * (kLatentDims / group));
  }
  static constexpr int shared(int bits, int group) { return kStage + stage(bits, group); }
};

// By wgmma: latents of 512 dims, tiles of 64 tokens, two of them; two warpgroups that multiply, one that brings tiles.
struct LatentHopper {
  static constexpr int kRows = 64, kTokens = 64, kThreads = 384, kRecord = 2 * kRows + kRows * kLatentDims;
  static constexpr int kRegisters = 184;  // of threads that multiply
  // Shared memory: queries, tiles, weights, largest scores of rows, barriers.
  static constexpr int kTile = kTokens * kLatentWidth * 2, kTiles = kRows * kLatentWidth * 2,
                       kWeights = kTiles + 2 * kTile, kPeaks = kWeights + kRows * kTokens * 2,
                       kBarriers = kPeaks + 2 * kRows * 4, kBytes = kBarriers + 32;
  static_assert(kBytes <= 227 << 10);
};

// Few rows; many, on devices with room for them; many elsewhere.
using LatentFew = LatentShape<16, 32>;
using LatentMany = LatentShape<64, 32>;
using LatentSmall = LatentShape<32, 16>;
static_assert(LatentFew::shared(16, 32) <= (99 << 10) && LatentFew::shared(8, 32) <= 99 << 10 &&
                  LatentSmall::shared(8, 32) <= 99 << 10 && LatentSmall::shared(16, 32) <= (99 << 10),
              "a block of 8.6 and 8.9 has 99 KiB");
static_assert(LatentMany::shared(16, 32) <= 163 << 10 && LatentMany::shared(8, 32) <= 163 << 10,
              "a block of 8.0 has 163 KiB");

}  // namespace lpq::cuda
