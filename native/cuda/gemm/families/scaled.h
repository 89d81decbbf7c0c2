// What the launcher tells the kernel of scaled weights (scaled.cuh).
#pragma once

namespace lpq::cuda {

// What the kernel is told besides. Items are tiles of 8 T tokens of strips of 4 P G packed blocks; token tiles come in
// groups of `together`, and in a group all tiles of a strip before those of the next, so that blocks that run at once
// read few bytes that differ.
struct ScaledArgs {
  int slabs;  // of the ring of activations
  int rows;   // tokens of a box: 8 T, or in eights those that there are
  int strips;
  int token_tiles, together;
  int items;
  int shared_items;   // the first ones: their steps along K are cut into equal runs, none empty
  int shared_blocks;  // for so many blocks (as many as shared items at least); the other items are done whole, by all
                      // blocks in turn
  int owners;   // who begins a shared item adds up its sums; else a multiple of the shared items are the blocks, which
                // add up a share each
  int vectors;  // rows of y start at multiples of 16 bytes
  int overlap;  // launched while the operation before may still run
  float lift;   // what is added to signed codes to make them unsigned
  float zero;   // the constant zero point, without it
};

// Pairs of warpgroups multiply, another warpgroup copies.
constexpr int scaled_threads(int pairs) { return 256 * pairs + 128; }
constexpr int kScaledStaging = 1024;  // bytes a warp
constexpr int kMostScaledStages = 8, kMostScaledSlabs = 16;

}  // namespace lpq::cuda
