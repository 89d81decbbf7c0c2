// Which steps a block of scaled.cuh or act8.cuh does, and where its items lie.
#pragma once
#include "cuda/gemm/families/scaled.h"
#include "cuda/gemm/stream_k.cuh"
#include "cuda/ptx/features.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// A block's steps in order: its run of the shared items, then whole items in turn.
struct ScaledWalk {
  int first, last;  // of the shared items' steps
  int steps;        // in all
  int item, kb, end;

  __device__ __forceinline__ ScaledWalk(const ScaledArgs& a, int k_blocks) {
    const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
    const EvenRuns runs(a.shared_items, k_blocks, a.shared_blocks);
    first = last = 0;
    if (block < a.shared_blocks) first = runs.first(block), last = runs.first(block + 1);
    const int whole = a.items - a.shared_items;
    steps = last - first + (block < whole ? (whole - 1 - block) / blocks + 1 : 0) * k_blocks;
    if (first < last) item = first / k_blocks, kb = first % k_blocks, end = min(k_blocks, kb + last - first);
    else item = a.shared_items + block, kb = 0, end = k_blocks;
  }
  // One step on: true where the item, or the run, ends there.
  __device__ __forceinline__ bool on() { return ++kb == end; }
  __device__ __forceinline__ void next_item(const ScaledArgs& a, int k_blocks) {
    const bool shared = item < a.shared_items;
    const int left = shared ? last - (item * k_blocks + kb) : 0;  // of the run
    item = left > 0 ? item + 1
           : shared ? a.shared_items + static_cast<int>(blockIdx.x)
                    : item + static_cast<int>(gridDim.x);
    kb = 0, end = left > 0 ? min(k_blocks, left) : k_blocks;
  }
};
// Where an item lies: the first packed block of its strip, and its first token.
struct ScaledPlace {
  int block, token;
};
__device__ __forceinline__ ScaledPlace scaled_place(const ScaledArgs& a, int width, int tokens, int item) {
  if (a.token_tiles == 1) return {item * width, 0};
  const int group = item / (a.together * a.strips), rest = item - group * a.together * a.strips,
            tiles = min(a.together, a.token_tiles - group * a.together);
  return {rest / tiles * width, (group * a.together + rest % tiles) * tokens};
}
// The same, and where its box of tokens begins.
__device__ __forceinline__ ScaledPlace scaled_box(const ScaledArgs& a, int width, int tokens, int item) {
  const ScaledPlace at = scaled_place(a, width, tokens, item);
  return {at.block, min(at.token, a.last_token)};
}

#endif

}  // namespace lpq::cuda
