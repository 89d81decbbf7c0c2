// What a decode kernel over packed keys and values does at once, in numbers: for the host that launches it, and the kernel.
#pragma once

namespace lpq::cuda {

// All a launch is told. Distances are in bytes; pages hold whole tiles of N_r tokens.
struct KvDecodeArgs {
  const unsigned short* q;  // f16 [B, heads, D]
  const unsigned char *keys, *key_numbers, *values, *value_numbers;
  const int* table;    // [B, table_pages]
  const int* lengths;  // [B], packed tokens
  const unsigned short *tail_keys, *tail_values;  // f16 [B, room, kv_heads, D], of which tails [B] tokens are there
  const int* tails;
  float* partial;      // [B, kv_heads, query_tiles, splits]: a record is most[8], total[8], sums[8][D]
  unsigned* counters;  // [B, kv_heads, query_tiles], 0 before and after
  void* y;             // [B, heads, D] f32 (wide) or f16
  long long keys_page, key_numbers_page, values_page, value_numbers_page;
  int key_row, key_head, key_number_row, key_number_head, value_row, value_head, value_number_group, value_number_head;
  int page_tokens, table_pages, heads, kv_heads, query_tiles, splits, room, wide;
  float scale;  // of scores, times log2 e
};

// Packs blocks of one sequence: keys by channel, values by token.
struct KvPackArgs {
  const unsigned short *k, *v;  // f16 [tokens, kv_heads, D], whole blocks
  const int* table;             // pages of the sequence
  unsigned char *keys, *key_numbers, *values, *value_numbers;
  KvDecodeArgs places;  // distances and page_tokens
  int first;            // token of the sequence that k and v begin with, a multiple of the block
  int block, key_group, value_group, run;
};

constexpr int kKvQueries = 8;  // the columns of one mma
template <int DIMS>
constexpr int kKvRecord = 2 * kKvQueries + kKvQueries * DIMS;  // floats

// A unit is half a tile: 16 rows of words of keys, hence 16 R tokens.
template <int BITS, int DIMS, int KEY_GROUP, int VALUE_GROUP>
struct KvShape {
  static constexpr int kBits = BITS, kDims = DIMS, kKeyGroup = KEY_GROUP, kValueGroup = VALUE_GROUP;
  static constexpr int kCodes = 16 / kBits;                                       // R, of a word
  static constexpr int kTile = 32 * kCodes, kTokens = 16 * kCodes;                // N_r; tokens of a unit
  static constexpr int kGroupTiles = kKeyGroup / 32 < kCodes ? kKeyGroup / 32 : kCodes;  // steps of a word that share a group
  static constexpr int kGroups = kCodes / kGroupTiles;                            // groups of keys that a tile touches
  static constexpr int kValueGroups = kDims / kValueGroup;
  static constexpr int kBlock = kTile > kKeyGroup ? kTile : kKeyGroup, kRun = kBlock < 128 ? kBlock : 128;
  static constexpr int kKeyRow = 2 * kDims, kValueRow = kDims * kBits / 8;
  static constexpr int kChunk = kDims < 128 ? kDims : 128, kChunkWords = kChunk / kCodes, kWords = kDims / kCodes;
  static constexpr bool kNarrow = kWords < 16;  // a token has 8 words: two codes of a word fill the rows of an mma
  static constexpr int kKeyBytes = 16 * kKeyRow, kValueBytes = kTokens * kValueRow;
  static constexpr int kKeyNumbers = kGroups * kDims * 4, kValueNumbers = kValueGroups * kTokens * 4;
  static constexpr int kStage = kKeyBytes + kValueBytes + kKeyNumbers + kValueNumbers;
  static constexpr int kMost = 226 << 10;
  static constexpr int kRings = kMost / (2 * kStage), kWarps = kRings < 12 ? kRings : 12;
  static constexpr int kStages = kMost / (kWarps * kStage) < 4 ? kMost / (kWarps * kStage) : 4;
  static constexpr int kShared = kWarps * kStages * kStage;
  static_assert(kWarps >= 4 && kStages >= 2 && kStage % 16 == 0 && kKeyGroup % 32 == 0 && kValueGroup % 32 == 0 && kDims % 64 == 0);
  static_assert(kWarps * kKvRecord<kDims> * 4 + 16 <= kShared);
};

}  // namespace lpq::cuda
