// What a block of kv_prefill.cuh takes at once of a packed cache: a tile of kTokens tokens, keys then values. First its
// words and numbers come to shared memory as they are (kv_prefill/fetch.cuh), then they are made halves
// (kv_prefill/halves.cuh), from which products read them. For the host that launches it, and the kernels.
#pragma once
#include "cuda/attention/kv_shape.h"

namespace lpq::cuda {

constexpr int kPrefillWorkers = 128;  // threads that fetch and convert

// FORM: kFine (keys by channel, groups of any size), kTokens or kWords; sizes of groups are told at run time.
// Of a head of 512 dims two warps, or warpgroups, share rows, 256 dims each: both have all scores, and outputs of their
// own dims.
template <int KEY_BITS, int VALUE_BITS, int DIMS, KvForm FORM, int TOKENS>
struct PrefillShape {
  static constexpr int kSharers = DIMS > 256 ? 2 : 1, kOwnDims = DIMS / kSharers;
  static constexpr bool kInWords = FORM == KvForm::kWords, kByToken = FORM == KvForm::kTokens;
  static constexpr int kKeyBits = KEY_BITS, kValueBits = VALUE_BITS, kDims = DIMS, kTokens = TOKENS;
  static constexpr int kKeyCodes = 16 / KEY_BITS, kValueCodes = 16 / VALUE_BITS;  // of a word
  // N_r: tokens whose keys share words. A tile of fewer takes kRun of every 32.
  static constexpr int kSpan = kInWords ? (TOKENS < 64 ? TOKENS : 64) : 32 * kKeyCodes;
  static constexpr int kParts = kSpan > TOKENS ? kSpan / TOKENS : 1, kRun = 32 / kParts;
  // Tokens of one page for certain, and how many times that.
  static constexpr int kUnit = kSpan < TOKENS ? kSpan : TOKENS, kUnits = TOKENS / kUnit;
  static constexpr int kKeyRow = kInWords ? DIMS * KEY_BITS / 8 : 2 * DIMS,
                       kKeyRows = kInWords ? kUnit : kUnit / kKeyCodes;  // of a unit
  static constexpr int kValueRow = DIMS * VALUE_BITS / 8;
  static constexpr int kChunk = DIMS < 128 ? DIMS : 128, kChunkWords = kChunk / kValueCodes;
  // Numbers of tokens come in eights: of a tile that takes fewer of 32, some of other tiles come with them.
  static constexpr int kNumberRun = kRun < 8 ? 8 : kRun, kNumberTokens = TOKENS / kRun * kNumberRun;
  static constexpr int kTokenNumbers = kInWords ? 4 * TOKENS : DIMS / 32 * kNumberTokens * 4;
  static constexpr int kGroups = kSpan / 32;  // of keys by channel in a unit's span, at most
  static constexpr int kKeyNumbers = kInWords || kByToken ? kTokenNumbers : kUnits * kGroups * DIMS * 4;
  static constexpr int kKeyBytes = TOKENS * DIMS * KEY_BITS / 8, kValueBytes = TOKENS * DIMS * VALUE_BITS / 8;
  static constexpr int kKeyStage = kKeyBytes + kKeyNumbers, kValueStage = kValueBytes + kTokenNumbers,
                       kStage = kKeyStage > kValueStage ? kKeyStage : kValueStage;
  static constexpr int kTileBytes = TOKENS * DIMS * 2;
  static_assert(TOKENS * DIMS % (64 * kPrefillWorkers) == 0 && TOKENS % 16 == 0);
};

// The kernel for devices without wgmma: rows and tokens of a block, and what warps hand each other.
template <class T>
constexpr int kPrefillRows = 64 / T::kSharers;
template <int KEYS, int VALUES, int DIMS, KvForm FORM>
using PrefillTile = PrefillShape<KEYS, VALUES, DIMS, FORM,
                                 DIMS == 64    ? 128
                                 : DIMS == 128 ? 64
                                 : DIMS == 256 ? 32
                                               : 16>;
template <class T>
constexpr int kPrefillHanded = T::kSharers > 1 ? kPrefillWorkers* T::kTokens * 2 : 0;
template <class T>
constexpr int kPrefillShared =
    (kPrefillRows<T> + 2 * T::kTokens) * T::kDims * 2 + T::kKeyStage + T::kValueStage + kPrefillHanded<T>;

// That by wgmma: rings of tiles of halves, and before them of words, of each warpgroup of workers its own.
constexpr int kHopperMultipliers = 256;
template <class T>
constexpr int kHopperRows = 128 / T::kSharers;
template <int KEYS, int VALUES, int DIMS, KvForm FORM>
using HopperTile = PrefillShape<KEYS, VALUES, DIMS, FORM,
                                DIMS == 512                                           ? 32
                                : DIMS == 256 || (DIMS == 128 && KEYS + VALUES == 16) ? 64
                                                                                      : 128>;
template <class T>
struct HopperShared {
  // Of heads of 256 dims there is no room for the words of two, of 512 not even for those of three tiles.
  static constexpr int kWorkers = T::kDims >= 256 ? 1 : 2, kTiles = T::kDims >= 256 ? 3 : 4,
                       kWords = T::kDims == 256 ? 3 : 2;
  static constexpr int stage(int bytes) { return (bytes + 127) / 128 * 128; }
  static constexpr int kKeyStage = stage(kWorkers == 1 ? T::kStage : T::kKeyStage),
                       kValueStage = kWorkers == 1 ? 0 : stage(T::kValueStage);
  static constexpr int kThreads = kHopperMultipliers + kWorkers * kPrefillWorkers;
  static constexpr int kQueries = kHopperRows<T> * T::kDims * 2, kWordsAt = kQueries + kTiles * T::kTileBytes,
                       kHandedAt = kWordsAt + kWords * (kKeyStage + kValueStage),
                       kHanded = T::kSharers > 1 ? kHopperMultipliers *T::kTokens * 2 : 0,  // scores of warpgroups
      kBarriersAt = kHandedAt + kHanded, kFlagAt = kBarriersAt + 16 * kTiles, kBytes = kFlagAt + 16;
  static_assert(kBytes <= 227 << 10);
};

template <int ROWS, int DIMS>
constexpr int kPrefillRecord = 2 * ROWS + ROWS * DIMS;  // floats of a split: most, total, sums

}  // namespace lpq::cuda
