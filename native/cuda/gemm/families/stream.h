// Where the streaming kernel (stream.cuh) keeps activations in shared memory, and how its warps share a block's
// work: plain functions, which the host compiles too (test/native/stream-maps.cpp).
//
// Activations lie as operand B of mma.m16n8k16 wants them: for each packed block of k, chunk of 32 k and tile of 8
// tokens 512
// bytes, 16 a lane: words 2 ks and 2 ks + 1 are the lane's b0 and b1 of step ks of the chunk. Lanes' places are
// permuted so that neither the warp that writes (eight tokens at once) nor the one that reads (in order of lanes) meets
// a bank twice.
#pragma once
#include <cstdint>

#include "cuda/host_device.h"

namespace lpq::cuda {

constexpr int kStreamWarps = 16;   // of a block; one block a multiprocessor
constexpr int kSliceBytes = 2048;  // of activations for 128 k and one tile of tokens

// The sixteen bytes of the lane that holds token `g` of the tile and pair `t` of every eight k.
LPQ_HOST_DEVICE constexpr int stream_slot(int g, int t) { return 4 * g + (t ^ (g >> 1)); }

// Byte of the first of 512 for a chunk (0..3) of block `kb` (of the slice), tile `tile` of `tiles`.
LPQ_HOST_DEVICE constexpr int stream_fragment(int kb, int chunk, int tile, int tiles) {
  return ((kb * 4 + chunk) * tiles + tile) * 512;
}

// Byte of pair `t` of eight `j` (0..3) of a chunk for token `g` of the tile.
LPQ_HOST_DEVICE constexpr int stream_pair(int kb, int chunk, int tile, int tiles, int g, int j, int t) {
  return stream_fragment(kb, chunk, tile, tiles) + 16 * stream_slot(g, t) + 4 * j;
}

// What the first product of a group starts from, for each group of a packed block along K: for each tile of tokens,
// `starts` (1 or
// 2: halves of the strip's rows) times four lanes' float4 {rows' token 2t, 2t + 1, rows + 8's token 2t, 2t + 1}.
// Groups' sums, where starts are not used: [groups][8 T] floats. Both fit:
constexpr int kStartBytes = 128;  // for one tile of tokens and one group
// Byte of the first of token `token`'s two floats (the other is 8 further) of half `half`.
LPQ_HOST_DEVICE constexpr int stream_start(int tile, int half, int token, int starts) {
  return (tile * starts + half) * 64 + (token >> 1) * 16 + (token & 1) * 4;
}

// Bytes of dynamic shared memory, in this order; the host asks for as many (packed.cpp).
struct StreamShared {
  int starts, heads, parts, total;
};
// `x_tiles`: tiles that activations take, twice as many where they come in two parts. `slices` whose parts are added up
// here; 0: elsewhere.
LPQ_HOST_DEVICE constexpr StreamShared stream_shared(int tiles, int x_tiles, int warps, int k_most,
                                                     int groups_per_block, int strips, int slices) {
  StreamShared s{};
  s.starts = k_most * kSliceBytes * x_tiles;  // after activations
  s.heads = s.starts + k_most * groups_per_block * kStartBytes * tiles;
  s.parts = s.heads + warps * tiles * 1024;  // what warps hand to those before them
  s.total = s.parts + (slices > 0 ? (strips + slices - 1) / slices * slices * tiles * 1024 : 0);
  return s;
}

}  // namespace lpq::cuda
