// How decode attention over packed keys and values is cut: queries of a block, warps of a block, splits of the tokens.
#pragma once
#include <algorithm>
#include <cstdint>

#include "cuda/attention/kv_shape.h"

namespace lpq::cuda {

// Numbers of a kernel that depend on its shape alone.
struct KvFacts {
  int queries, stage, most_warps, unit;
  int record;   // bytes of what is found of a block's queries
  int sharers;  // warps that share a unit
  int64_t shared(int64_t warps) const { return std::max<int64_t>(warps * stage, warps / sharers * record + 16); }
};
template <class T>
constexpr KvFacts kv_facts_of() {
  static_assert(T::kSharers * T::kStage <= 99 << 10, "a block of 8.6 and 8.9 has 99 KiB");
  return {T::kQueries, T::kStage, T::kMostWarps, T::kTokens, T::kRecord * 4, T::kSharers};
}

// Queries of a block: the fewest that take all `group` queries of a kv head, or the most that registers hold.
constexpr int kv_queries(int64_t group, int64_t dims) { return group <= 4 ? 4 : group <= 8 || dims > 128 ? 8 : 16; }

struct KvPlan {
  int64_t warps, splits;
};
// Splits that are brought together at once: all, or about as many as there are runs of them.
inline int kv_joined(int64_t splits) {
  if (splits <= 16) return 16;
  int64_t joined = 4;
  while (joined * joined < splits) ++joined;
  return static_cast<int>(joined);
}

// Blocks that a multiprocessor holds at once: by shared memory, of which each takes 1 KiB besides, and by registers.
inline int64_t kv_resident(const KvFacts& facts, int64_t warps, int64_t room) {
  const int64_t shared = facts.shared(warps);
  return shared > room || warps > facts.most_warps
             ? 0
             : std::min((room + 1024) / (shared + 1024), facts.most_warps / warps);
}

// What ends soonest, in eighths of the time of one unit of one of eight warps: rounds of blocks, each of so many units
// a warp, which take as long as there are warps on a multiprocessor, but at least eight, and what it takes to begin and
// to bring together; measured on an H100 (docs/internals/kernels/attention.md). Splits have to be joined. Of the tail,
// expected to be `tails` sixteens, warps without a unit take one; others take one besides. Fewer than six warps are for
// short sequences, where they have nothing to hide; fewer than three for devices that hold no more. Warps that are no
// multiple of four leave a scheduler idle. No warps: the device holds none. asked: 0 where the choice is open.
inline KvPlan kv_plan(const KvFacts& facts, const KvPlan& asked, int64_t tiles, int64_t units, int64_t tails,
                      int64_t multiprocessors, int64_t room) {
  const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  KvPlan best{0, 1};
  int64_t least = INT64_MAX;
  for (const int64_t some : {16, 12, 8, 6, 4, 3, 2, 1}) {
    if (asked.warps ? some != 16 : best.warps && (some < 3 || (some < 6 && units > 16))) continue;
    const int64_t warps = asked.warps ? asked.warps : some, blocks = kv_resident(facts, warps, room),
                  workers = warps / facts.sharers;  // warps, or pairs that share units
    if (blocks == 0 || warps % facts.sharers) continue;
    const int64_t most = asked.splits ? asked.splits : std::min<int64_t>(128, up(units + tails, workers));
    for (int64_t splits = asked.splits ? asked.splits : 1; splits <= std::max<int64_t>(most, 1); ++splits) {
      const int64_t all = tiles * splits, at_once = std::min(blocks, up(all, multiprocessors)),
                    unit = std::max<int64_t>(at_once * warps, 8),
                    round = 8 * up(up(units, splits), workers) * unit + 56 + 4 * at_once * warps,
                    idle = splits * workers - units;
      const int64_t tail = tails == 0 ? 0 : 32 * (tails - std::clamp<int64_t>(idle, 0, tails)) / tails;
      const int64_t cost =
          up(all, multiprocessors * at_once) * round + 3 * splits + (splits > 1 ? 40 : 0) + (warps % 4 ? 6 : 0) + tail;
      if (cost < least) least = cost, best.warps = warps, best.splits = splits;
    }
  }
  return best;
}

}  // namespace lpq::cuda
