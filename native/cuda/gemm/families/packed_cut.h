// A cut of the kernels of packed.cuh and packed_sm90.cuh, and where TMA finds what a step of it takes: plain functions,
// which the host's test of a kernel uses, too.
#pragma once
#include "cuda/gemm/tensor_maps.h"

namespace lpq::cuda {

struct PackedTiles {
  bool wgmma = false;  // which of the two kernels
  int tiles = 1;       // of eight tokens
  int warps_n = 8, warps_k = 1, stages = 4, blocks = 1;
  unsigned shared = 0;
};

// What a block of it takes; side_bytes: scales and zero points of a packed block.
inline int64_t shared_bytes(const PackedTiles& t, int bits, int side_bytes) {
  const int64_t warps = int64_t{t.warps_n} * t.warps_k;
  const int64_t filled = int64_t{8} * t.tiles * t.warps_k * kBlockK * 2 + warps * (512 * bits + side_bytes);
  const int64_t sums = int64_t{t.wgmma ? t.stages : 2} * t.warps_k * 128 * t.tiles;
  const int64_t exchange = int64_t{t.warps_k / 2} * t.warps_n * t.tiles * 1024;
  return 1024 + t.stages * ((filled + 1023) / 1024 * 1024) + sums + exchange;
}

// Boxes of a step, of weights of n_blocks rows of packed blocks.
inline PackedMaps packed_maps(const GemmPackedArgs& a, int bits, const PackedTiles& t) {
  const auto u64 = [](int64_t v) { return static_cast<uint64_t>(v); };
  const auto u32 = [](int64_t v) { return static_cast<uint32_t>(v); };
  const int64_t step_groups = a.channel ? 1 : a.groups_per_block * t.warps_k;
  const uint64_t rows = u64(a.n_blocks);
  PackedMaps maps{};
  maps.x = describe_boxes(a.x, kMap16, {64, u64(a.m), u64(a.k / 64)}, {u64(a.k) * 2, 128},
                          {64, u32(8 * t.tiles), u32(2 * t.warps_k)}, true);
  maps.weights =
      describe_boxes(a.weights, kMap64, {64, u64(a.k_blocks) * u64(bits), rows},
                     {512, u64(a.k_blocks) * u64(bits) * 512}, {64, u32(bits * t.warps_k), u32(t.warps_n)}, false);
  maps.scales = describe_boxes(a.scales, kMap16, {32, u64(a.groups), rows}, {64, u64(a.groups) * 64},
                               {32, u32(step_groups), u32(t.warps_n)}, false);
  if (a.zero_kind)
    maps.zeros = describe_boxes(a.zeros, a.zero_kind == 1 ? kMap8 : kMap16, {32, u64(a.groups), rows},
                                {u64(32 * a.zero_kind), u64(a.groups) * u64(32 * a.zero_kind)},
                                {32, u32(step_groups), u32(t.warps_n)}, false);
  return maps;
}

}  // namespace lpq::cuda
