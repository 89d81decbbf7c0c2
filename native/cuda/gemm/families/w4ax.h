// What the launcher tells the kernels lpq_gemm_act_w4ax_*: products of weights of 4 bits and activations that are codes
// of 8 and 4 bits.
#pragma once
#include <cstdint>

#include "cuda/gemm/families/packed.h"
#include "cuda/host_device.h"

namespace lpq::cuda {

constexpr int kW4axRows = 256;     // of weights in a strip: two warpgroups of 128
constexpr int kW4axStages = 16;    // at most
constexpr int kW4axThreads = 384;  // two warpgroups that multiply, one that feeds
constexpr int kW4axStoreF16 = 0, kW4axStoreBf16 = 1, kW4axStoreF32 = 2;

struct W4axArgs {
  void* y;             // [m, n]
  const float* bias;   // [n] or null
  const int* blocks;   // for each 128 of k its number among those of 8 bits, or ~ of that among those of 4
  float* partial;      // two tiles a block
  unsigned* counters;  // two an item and block of the cluster, 0 before and after
  int m, n, k_blocks;
  int token_tiles;  // groups of `cluster` tiles of 8 T tokens
  int items,
      shared;  // strips times token_tiles, tiles first; the first `shared` of them are shared in equal runs of steps
  int stages, cluster;  // 1 or 2 blocks that share a strip
  int store, vectors;   // type of y; rows of y start at multiples of 16 bytes
};

// Boxes: x [m, k8] bytes of the blocks of 8 bits, x4 [m, k4 / 2] of the others, weights [n / 16, k / 128, 1024] packed,
// w_scales f32 [k / 128, n], x_scales f32 [k / 128, m].
struct W4axMaps {
  TensorMap x, x4, weights, w_scales, x_scales;
};

// Bytes of a stage and where its parts begin.
struct W4axStage {
  int x, raw, w_scales, x_scales, bytes;
};
LPQ_HOST_DEVICE constexpr W4axStage w4ax_stage(int tiles) {
  W4axStage s{};
  s.x = kW4axRows * 64;
  s.raw = s.x + tiles * 1024;
  s.w_scales = s.raw + tiles * 512;
  s.x_scales = s.w_scales + kW4axRows * 4;
  s.bytes = (s.x_scales + tiles * 32 + 1023) / 1024 * 1024;
  return s;
}

// What steps a block runs through: its share of the shared items, then whole ones.
struct W4axWalk {
  int item, kb, left, steps;  // `left`: steps to go among shared items
  int unit, units, first;
  LPQ_HOST_DEVICE W4axWalk(const W4axArgs& a, int unit_, int units_) : unit(unit_), units(units_) {
    const unsigned total = static_cast<unsigned>(a.shared) * static_cast<unsigned>(a.k_blocks);
    first = first_of_part(total, unit, units);
    left = first_of_part(total, unit + 1, units) - first;
    const int whole = a.items - a.shared > unit ? (a.items - a.shared - unit + units - 1) / units : 0;
    steps = left + whole * a.k_blocks;
    item = first / a.k_blocks, kb = first % a.k_blocks;
    if (left == 0) item = a.shared + unit, kb = 0;
  }
  LPQ_HOST_DEVICE void next(const W4axArgs& a) {
    ++kb;
    if (--left == 0) item = a.shared + unit, kb = 0;
    else if (kb == a.k_blocks) kb = 0, item += left > 0 ? 1 : units;
  }
};

}  // namespace lpq::cuda
