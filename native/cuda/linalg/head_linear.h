// What the kernels of a product of every head's own are told: for the host that launches them, and the kernels.
#pragma once
#include <cstdint>

namespace lpq::cuda {

// A block makes kTokens x kColumns numbers of one head, kSlab terms of their sums at a time.
constexpr int kHeadTokens = 16, kHeadColumns = 64, kHeadSlab = 32, kHeadThreads = 256;
// A column more than a slab has: threads that write along rows and such that read along columns meet no bank twice.
constexpr int kHeadPitch = kHeadColumns + 1, kHeadShared = 4 * (kHeadTokens * kHeadSlab + kHeadSlab * kHeadPitch);

struct HeadLinearArgs {
  const float* x;
  const void* weight;
  void* y;
  long long x_row, y_row, columns;  // numbers between tokens, and between rows of weight
  int tokens, heads, n, k, rows, first, from_dim, from, to_dim, to, turned;
  int column_tiles;
  int store;  // of y: 0 f32, 1 f16, 2 bf16
};

}  // namespace lpq::cuda
