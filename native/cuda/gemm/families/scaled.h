// What the launcher tells the kernel of scaled weights (scaled.cuh).
#pragma once
#include "cuda/host_device.h"

namespace lpq::cuda {

// What the kernel is told besides. Items are tiles of 8 T tokens of strips of 4 P G packed blocks; token tiles come in
// groups of `together`, and in a group all tiles of a strip before those of the next, so that blocks that run at once
// read few bytes that differ.
struct ScaledArgs {
  int slabs;  // of the ring of activations
  int rows;   // tokens of a box: 8 T, or in eights those that there are
  // Boxes of tokens begin here at the latest: the last tile begins early enough to end with the tokens, since TMA takes
  // twice as long for rows beyond the tensor. Tokens that it shares with the tile before are multiplied twice and
  // stored by that one.
  int last_token;
  int strips;
  int token_tiles, together;
  int items;
  int shared_items;   // the first ones: their steps along K are cut into equal runs, none empty
  int shared_blocks;  // for so many blocks (as many as shared items at least); the other items are done whole, by all
                      // blocks in turn
  int owners;   // who begins a shared item adds up its sums; else a multiple of the shared items are the blocks, which
                // add up a share each
  int cluster;  // so many blocks share an item and are a cluster, which adds up in its shared memory; 0: blocks share
                // items through the workspace
  int staging_at, received_at;  // bytes of shared memory before outputs on their way, and sums of a cluster's others
  int scales_at;                // and before scales of tokens, where they differ along K
  int vectors;                  // rows of y start at multiples of 16 bytes
  int overlap;                  // launched while the operation before may still run
  float lift;                   // what is added to signed codes to make them unsigned
  float zero;                   // the constant zero point, without it
};

// Pairs of warpgroups multiply, another warpgroup copies.
constexpr int scaled_threads(int pairs) { return 256 * pairs + 128; }
// Blocks that a multiprocessor holds: two of those that need few registers.
LPQ_HOST_DEVICE constexpr int scaled_residents(int tiles, int halves, int pairs) {
  return halves == 1 && pairs == 1 && tiles <= 8 ? 2 : 1;
}
constexpr int kScaledStaging = 1024;  // bytes a warp
// Bytes of a slab's scales of tokens, in f32.
LPQ_HOST_DEVICE constexpr int scaled_token_bytes(int tiles) { return tiles < 4 ? 128 : 32 * tiles; }
constexpr int kMostScaledStages = 8, kMostScaledSlabs = 16;
constexpr int kMostScaledCluster = 8;  // blocks
constexpr int kScaledSumsFull = 512;   // where in shared memory the barrier of a cluster's sums is

// What each of the blocks that share an item adds up: a part of its units of 16 / P tokens, 1 KB of a warp's sums each.
// Where blocks are more than units, the warps of a unit have several owners.
struct ScaledShares {
  int blocks, units, parts, ways;

  LPQ_HOST_DEVICE ScaledShares(int tiles, int halves, int sharers)
      : blocks(sharers),
        units(tiles * halves / 2),
        parts(sharers < units ? sharers : units),
        ways(sharers / parts < 8 ? sharers / parts : 8) {}
  // Units of a part, the first and how many at most.
  LPQ_HOST_DEVICE int first(int part) const { return units * part / parts; }
  LPQ_HOST_DEVICE int most() const { return (units + parts - 1) / parts; }
  LPQ_HOST_DEVICE int part_of(int unit) const { return ((unit + 1) * parts - 1) / units; }
  LPQ_HOST_DEVICE int owner(int unit, int warp) const { return part_of(unit) + parts * (warp % ways); }
  // Of block `turn`: its part, and which warps' (warp % ways); ways: none.
  LPQ_HOST_DEVICE int part(int turn) const { return turn % parts; }
  LPQ_HOST_DEVICE int way(int turn) const { return turn / parts; }
  LPQ_HOST_DEVICE bool owns(int turn, int warp) const { return way(turn) == warp % ways; }
  // Bytes that a block is sent, and where: [other block][warp of its way][unit of its part][1 KB].
  LPQ_HOST_DEVICE int warps_of(int way, int warps) const { return way < ways ? (warps - way + ways - 1) / ways : 0; }
  LPQ_HOST_DEVICE int bytes(int turn, int warps) const {
    return (blocks - 1) * warps_of(way(turn), warps) * (first(part(turn) + 1) - first(part(turn))) * 1024;
  }
  LPQ_HOST_DEVICE int place(int from, int to, int warp, int unit, int warps) const {
    const int sender = from < to ? from : from - 1;
    return ((sender * warps_of(0, warps) + warp / ways) * most() + unit - first(part(to))) * 1024;
  }
  LPQ_HOST_DEVICE int room(int warps) const { return (blocks - 1) * warps_of(0, warps) * most() * 1024; }
};

}  // namespace lpq::cuda
