// What the kernel of rope_append takes (cache_rows.cu). A warp moves a head of one token; lane l has, of `half` pairs,
// the pairs l, l + 32, ...:
//   (lane, i) -> dims p and p + half of pair p = lane + 32 i, or 2 p and 2 p + 1 where neighbours turn together
// and of dims that do not turn those lane + 32 i. Heads 0 to heads - 1 are of q, then come those of k and of v.
#pragma once

namespace lpq::cuda {

constexpr int kAppendWarps = 8;
constexpr int kMostHeadDim = 256, kMostWideHeadDim = 512;  // wide: of a kernel of its own

struct RopeAppendArgs {
  const void *q, *k, *v;  // the first column of each
  void *y, *keys, *values;
  const float *cosines, *sines;
  const void *q_norm, *k_norm;  // or null
  const int *positions, *starts, *slots, *totals;
  unsigned *fault, *outside;
  long long q_pitch, k_pitch, v_pitch, places;
  float eps, offset;
  int q_norm_type, k_norm_type;
  int x_type, y_type, sequences, tokens, slots_count, rows, heads, kv_heads, head_dim, value_dim, rotary, halves;
};

}  // namespace lpq::cuda
