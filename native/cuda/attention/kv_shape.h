// What a decode kernel over packed keys and values does at once, in numbers: for the host that launches it, and the
// kernel.
#pragma once
#include "cuda/host_device.h"

namespace lpq::cuda {

// How keys and values are scaled, as far as kernels differ (formats/kv/spec.md).
enum class KvForm {
  kWide,    // bitdecoding: keys by channel in groups of 128 tokens, values by whole chunks of up to 128 dims
  kFine,    // bitdecoding: keys by channel in groups of 32 or 64 tokens, values in groups of as many dims
  kTokens,  // bitdecoding: keys and values by token in groups of 32, 64 or 128 dims
  kWords,   // turbomind: one scale and zero a token and head, codes of a token one after another
};

constexpr int kKvStoreF16 = 0, kKvStoreBf16 = 1, kKvStoreF32 = 2;  // types of y

// All a launch is told. Distances are in bytes; pages hold whole tiles of N_r tokens, of turbomind whole 64 tokens.
struct KvDecodeArgs {
  const unsigned short* q;  // f16, or bf16, [B, queries, heads, head_dims]
  const unsigned char *keys, *key_numbers, *values, *value_numbers;
  const int* table;                               // [B, table_pages]
  const int* lengths;                             // [B], packed tokens
  const unsigned short *tail_keys, *tail_values;  // f16 [B, room, kv_heads, head_dims], of which tails [B] are there
  const int* tails;
  float* partial;      // [B, kv_heads, query_tiles, splits and runs]: a record is most[Q], total[Q], sums[Q][D]
  unsigned* counters;  // [B, kv_heads, query_tiles, 1 and runs], 0 before and after
  unsigned* fault;     // set where the table, a length or a tail is none
  void* y;             // [B, queries, heads, head_dims]
  long long keys_page, key_numbers_page, values_page, value_numbers_page;
  // Numbers of keys by channel: of a group of tokens (row); by token: of a group of dims.
  int key_row, key_head, key_number_row, key_number_head, value_row, value_head, value_number_group, value_number_head;
  // head_dims: of a head as it comes, a multiple of 8 and at most D; dims of the cache behind them are zeros.
  int head_dims, page_tokens, table_pages, pages, heads, kv_heads, query_tiles, splits, room, store;
  // Of kv_prefill.cuh: how many newest tokens of a sequence ask (elsewhere one), and what its loader is told at run
  // time.
  int queries, key_bits, value_bits, by_token, words;
  int key_group, value_group, run;  // tokens or dims of a group; tokens of a run of scales
  int page_units, page_shift;       // units of a page, and their log2, or -1
  float scale;                      // of scores, times log2 e
  int early;                        // pages, table, lengths and tails may be read while the operation before still runs
  // q is bf16; null, or a logit a head that takes part in the softmax and has no value, of a type as load_any() reads
  // it.
  int bf16_queries, sinks_type;
  const void* sinks;
  int joined;  // splits that are brought together at once
};

// Quantizes and packs tokens (kv_pack.cuh): of a prompt, or of tails that are full, before a token is appended to each.
struct KvPackArgs {
  const unsigned short *k, *v;  // f16 [tokens, kv_heads, head_dims]; of appending [sequences, kv_heads, head_dims]
  const int* table;             // pages of the sequence; of appending [sequences, table_pages]
  unsigned char *keys, *key_numbers, *values, *value_numbers;
  KvDecodeArgs places;           // distances, page_tokens, pages, key_group, value_group and run
  int first, tokens;             // of the sequence; of a prompt
  int early;                     // nothing that still runs touches any of this
  int block, dims;               // tokens that are packed at once; D
  unsigned *fault, *fault_page;  // set where a number is NaN or infinity; where the table or a length leads to no page
  // Of appending alone: lengths and tails [sequences], tails f16 [sequences, room, kv_heads, head_dims], flushed when
  // `residual` tokens are there.
  int *lengths, *tails;
  unsigned short *tail_keys, *tail_values;
  int residual;
  unsigned* counters;  // [sequences], 0 before and after
};

// Warps for 64 dims of kv_pack.cuh, so that a thread has 16 pairs of keys (2 bits: 32).
constexpr int kPackWarps = 8;
// Bytes of shared memory of a block of kv_pack.cuh: of keys ranges and groups, of values 512 a warp.
constexpr int kv_pack_shared(int chunk, int block, int key_group, bool by_token) {
  const int parts = chunk / 64, lines = key_group < 64 ? 2 * parts : parts,
            keys = by_token ? block * (4 * lines + 16 * (key_group == 128 ? 1 : lines))
                            : parts * (block / key_group) * (256 * kPackWarps + 1024),
            values = parts * kPackWarps * 512;
  return keys > values ? keys : values;
}

// The same of groups of at most `most` numbers with fitted ends: a double and a float of each number of a warp's group.
constexpr int kv_fit_shared(int threads, int most) { return threads / 32 * most * 12; }

// Runs of splits that are brought together first; 0: all are at once.
LPQ_HOST_DEVICE constexpr int kv_runs(int splits, int joined) {
  return splits > joined ? (splits + joined - 1) / joined : 0;
}

// Floats of what is found of QUERIES queries of a kv head, as many as a block takes.
constexpr int kv_record(int queries, int dims) { return 2 * queries + queries * dims; }

// A unit is what a warp takes at once, steps of 16 tokens. bitdecoding: half a tile, 16 rows of words of keys, hence of
// each 32 tokens 16; turbomind: 64 tokens.
// The 8 columns of an mma are queries of a kv head. 16 queries are two tiles of columns, which share the operands that
// codes become.
// Of a head of 512 dims two warps share a unit, 256 dims each: both have all scores, which are brought together in
// shared memory, and outputs of their own dims.
template <int KEY_BITS, int VALUE_BITS, int DIMS, KvForm FORM, int QUERIES>
struct KvShape {
  static constexpr int kQueries = QUERIES, kColumns = QUERIES / 8;
  static constexpr KvForm kForm = FORM;
  static constexpr bool kInWords = FORM == KvForm::kWords, kByToken = FORM == KvForm::kTokens || kInWords;
  static constexpr int kKeyBits = KEY_BITS, kBits = VALUE_BITS;
  static constexpr int kHeadDims = DIMS, kSharers = DIMS > 256 ? 2 : 1,
                       kDims = DIMS / kSharers;                         // of a head; of a warp
  static constexpr int kKeyCodes = 16 / kKeyBits, kCodes = 16 / kBits;  // R, of a word
  static constexpr int kSteps = kInWords ? 4 : kKeyCodes, kTokens = 16 * kSteps;
  static constexpr int kTile = kInWords ? 64 : 32 * kKeyCodes;  // tokens that kTileUnits units hold together
  static constexpr int kTileUnits = kInWords ? 1 : 2;
  static constexpr int kKeyRows = kInWords ? kTokens : 16, kKeyRow = kInWords ? kDims * kKeyBits / 8 : 2 * kDims;
  static constexpr int kValueRow = kDims * kBits / 8;
  // Groups of keys by channel that a unit touches, at most, and steps that share one.
  static constexpr int kGroupSteps = FORM == KvForm::kWide ? (kSteps < 4 ? kSteps : 4) : 1,
                       kGroups = kSteps / kGroupSteps;
  static constexpr int kPart = FORM == KvForm::kWide ? (kDims < 128 ? kDims : 128)
                               : kInWords            ? kDims
                                                     : 32;  // dims of values of one scale, at least
  static constexpr int kValueGroups = kDims / kPart;
  static constexpr int kChunk = kDims < 128 ? kDims : 128, kChunkWords = kChunk / kCodes, kWords = kDims / kCodes;
  static constexpr bool kNarrow = kWords < 16;  // a token has 8 words: two codes of a word fill the rows of an mma
  static constexpr int kKeyBytes = kKeyRows * kKeyRow, kValueBytes = kTokens * kValueRow;
  // Bytes from one line of numbers to the next, a little more than they take, so that lines meet no bank twice.
  static constexpr int kChannelLine = kDims * 4 + (kGroups > 1 ? 32 : 0), kTokenLine = 2 * kTokens + 16;
  static constexpr int kKeyNumbers = kInWords   ? 4 * kTokens
                                     : kByToken ? kDims / 32 * 2 * kTokenLine
                                                : kGroups * kChannelLine;
  static constexpr int kValueNumbers =
      kInWords ? 4 * kTokens : (FORM == KvForm::kWide ? kValueGroups : kDims / 32) * 2 * kTokenLine;
  // What a warp hands to the other of its pair: scores of a unit.
  static constexpr int kHandedAt = kKeyBytes + kValueBytes + kKeyNumbers + kValueNumbers,
                       kHanded = kSharers > 1 ? 512 * kSteps : 0;
  static constexpr int kStage = kHandedAt + kHanded;
  // Warps of a block, as far as registers go: sums, scores and queries, and some 60 besides.
  static constexpr int kHeld = kColumns * (kDims / 4 + kDims / 8 + (kByToken ? 8 : 4) * kSteps) + (kByToken ? 8 : 0);
  static constexpr int kMostWarps = kHeld > 100 ? 8 : kHeld > 48 ? 12 : 16;
  static constexpr int kRecord = kv_record(QUERIES, DIMS);
  static_assert(kStage % 16 == 0 && kDims % 64 == 0 && !(kInWords && kNarrow) && kColumns * kDims <= 256 &&
                (kSharers == 1 || kColumns == 1));
};

}  // namespace lpq::cuda
