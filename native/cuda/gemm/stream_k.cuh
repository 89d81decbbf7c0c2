// Stream-K: the steps along K of all output tiles, in a row, are cut into runs of equal length, one a block, so that
// every multiprocessor has the same work whatever the shape. Blocks may share the tiles at both ends of their runs. The
// fixup adds up what the sharers of a tile hold, in the order of K: no sum depends on timing.
#pragma once
#include "cuda/gemm/accumulators.cuh"
#include "cuda/host_device.h"
#include "cuda/ptx/global_memory.cuh"

namespace lpq::cuda {

// The blocks that share a tile, and which of its two parts each keeps there: the part of the tile that its run begins
// with is its first.
struct TileSharers {
  int from, to;     // blocks
  long long begin;  // the tile's first step
  __device__ __forceinline__ int count() const { return to - from + 1; }
};

// All tiles' steps in runs that differ by one at most.
struct EvenRuns {
  int steps;        // of a tile
  unsigned blocks;  // that have a run
  long long total;  // steps of all tiles

  __device__ __forceinline__ EvenRuns(int tiles, int tile_steps, unsigned run_blocks)
      : steps(tile_steps), blocks(run_blocks), total(static_cast<long long>(tiles) * tile_steps) {}
  __device__ __forceinline__ int first(unsigned block) const {
    return first_of_part(static_cast<unsigned>(total), block, blocks);
  }
  // Whose run has a step: the last block that begins with it or before.
  __device__ __forceinline__ int block_of(long long step) const {
    const unsigned long long at = static_cast<unsigned long long>(step + 1) * blocks - 1;
    if (at >> 32) return static_cast<int>(at / static_cast<unsigned long long>(total));
    return static_cast<int>(static_cast<unsigned>(at) / static_cast<unsigned>(total));
  }
  __device__ __forceinline__ TileSharers sharers(int tile) const {
    const long long begin = static_cast<long long>(tile) * steps;
    return {block_of(begin), block_of(begin + steps - 1), begin};
  }
  // Only the first of the sharers may have begun in an earlier tile.
  __device__ __forceinline__ int part(const TileSharers& s, int block) const {
    return block == s.from && first(static_cast<unsigned>(block)) < s.begin ? 1 : 0;
  }
};

// A sharer's part of a tile lies in the workspace. Counters of a tile are two, 0 before and after a launch.
template <class Sync>
__device__ __forceinline__ void publish_part(unsigned* counter, bool leader, const Sync& sync) {
  __threadfence();
  sync();
  if (leader) atomicAdd(counter, 1u);
}

// Fixup by all sharers at once: for each tile at an end of the run [first, last) that others share, waits for their
// parts, then add_up(tile, sharers), where a sharer adds up and stores its share of the tile. All blocks of the grid
// run at once, so nobody waits for ever. counter_of(tile): the first of its two; `leader`: one thread of those that
// sync().
template <class Counter, class Sync, class AddUp>
__device__ __forceinline__ void fixup_together(const EvenRuns& runs, int first, int last, bool leader,
                                               const Counter& counter_of, const Sync& sync, const AddUp& add_up) {
  if (first == last) return;
  const int front = first / runs.steps, back = (last - 1) / runs.steps;
  for (int tile = front; tile <= back; tile += max(1, back - front)) {
    const TileSharers sharers = runs.sharers(tile);
    if (sharers.from == sharers.to) continue;
    unsigned* const counter = counter_of(tile);
    if (leader) wait_for_count(counter, static_cast<unsigned>(sharers.count()));
    sync();
    add_up(tile, sharers);
    sync();
    // The last to be done leaves both counters at 0 for the next launch.
    if (leader && atomicAdd(counter + 1, 1u) + 1 == static_cast<unsigned>(sharers.count())) counter[0] = counter[1] = 0;
  }
}

// Runs of `per` steps each; the last may be shorter.
struct FixedRuns {
  int steps;  // of a tile
  int per;

  __device__ __forceinline__ TileSharers sharers(int tile) const {
    return {tile * steps / per, ((tile + 1) * steps - 1) / per, 0};
  }
  // A block keeps its first tile's part in its first place, and its last one's in its second.
  __device__ __forceinline__ int part(int tile, int block) const { return block * per / steps == tile ? 0 : 1; }
};

// Fixup by the sharer that is done last: true for it. Whoever calls has stored its part in the workspace. `flag`: a
// word of shared memory; the tile's counter is 0 before and after.
template <class Sync>
__device__ __forceinline__ bool is_last_sharer(unsigned* counter, unsigned* flag, const TileSharers& sharers,
                                               bool leader, const Sync& sync) {
  const unsigned others = static_cast<unsigned>(sharers.to - sharers.from);
  sync();
  if (leader) {
    const unsigned before = atom_inc_acq_rel(counter);
    *flag = before;
    if (before == others) *counter = 0;
  }
  sync();
  return *flag == others;
}

}  // namespace lpq::cuda
