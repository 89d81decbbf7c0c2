// What the kernels of a product of every head's own are told: for the host that launches them, and the kernels.
#pragma once
#include <cstdint>

namespace lpq::cuda {

// A block makes tokens (four, or four times four) x kHeadColumns numbers of one head, kHeadSlab terms of their sums at
// a time, of which kHeadStages are on their way or at work.
constexpr int kHeadColumns = 64, kHeadSlab = 64, kHeadThreads = 64, kHeadStages = 3, kHeadTokens = 16;
// Numbers between rows of a slab in shared memory: sixteen bytes more than it has, so that threads that read down its
// columns meet no bank often.
constexpr int head_pitch(int bytes) { return 64 + 16 / bytes; }
constexpr int head_shared(int bytes) {
  return kHeadStages * (bytes * 64 * head_pitch(bytes) + 4 * kHeadTokens * head_pitch(4));
}

struct HeadLinearArgs {
  const float* x;
  const void* weight;
  void* y;
  long long x_row, y_row, columns;  // numbers between tokens, and between rows of weight
  int tokens, heads, n, k, rows, first, from_dim, from, to_dim, to, turned;
  int column_tiles;
  int store;                // of y: 0 f32, 1 f16, 2 bf16
  int own;                  // tokens of a thread: 1 or 4
  int wide_x, wide_weight;  // rows begin at multiples of sixteen bytes
};

}  // namespace lpq::cuda
