// Causal attention with an online softmax (Dao et al. 2022, arXiv:2205.14135, algorithm 1) on mma.sync tiles of
// m16n8k16: 16-bit products, fp32 sums, softmax in fp32. A block takes 64 queries of one head, 16 a warp, and walks
// over key tiles.
#pragma once
#include "cuda/nn/attention_tiles.cuh"

namespace lpq::cuda {

constexpr int kFlashWarps = 4;

// cap > 0, in the same unit as scores (log2(e) times the soft cap): scores become cap * tanh(score / cap).
// sinks: null, or a logit a head that takes part in the softmax without a value, of a type as load_any() reads it. q
// [T, heads, HD] already multiplied by scale * log2(e); k, v [T, kv_heads, HD], zero beyond their width; y [T, heads,
// width], also f32 of bf16 products.
template <class T, class Y, int HD, int KEYS>
__device__ void flash(const T* q, const T* k, const T* v, Y* y, const AttentionTask* tasks, const int* task_count,
                      int heads, int kv_heads, int width, int window, float cap, const void* sinks, int sinks_type,
                      int head, int which) {
  if (which >= *task_count) return;
  // Long walks first, so that the last blocks to run are short.
  const AttentionTask task = tasks[*task_count - 1 - which];
  constexpr int kChunks = HD / 8, kTile = KEYS * HD * 2;
  const unsigned q_tile = shared_address(dynamic_shared()), k_tile = q_tile + kTaskQueries * HD * 2,
                 v_tile = k_tile + 2 * kTile;
  const int kv = head / (heads / kv_heads);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int last = min(task.query + kTaskQueries, task.length);  // one past the last query, hence the last key
  const int begin = window > 0 ? max(0, task.query - window + 1) / KEYS : 0, end = (last + KEYS - 1) / KEYS;

  auto fetch = [&](unsigned tile, const T* from, int rows_of, int first_row, int of_head, int count) {
    for (int i = threadIdx.x; i < count * kChunks; i += kFlashWarps * 32) {
      const int row = i / kChunks, chunk = i % kChunks;
      const bool there = first_row + row < task.length;
      const index_t source =
          (static_cast<index_t>(task.first + (there ? first_row + row : 0)) * rows_of + of_head) * HD + chunk * 8;
      cp_async_16(tile + place<HD>(row, chunk), from + source, there ? 16 : 0);  // what is not there is 0
    }
  };
  fetch(q_tile, q, heads, task.query, head, kTaskQueries);
  fetch(k_tile, k, kv_heads, begin * KEYS, kv, KEYS);
  fetch(v_tile, v, kv_heads, begin * KEYS, kv, KEYS);
  cp_async_commit();

  const float sink = sinks ? load_any(sinks, sinks_type, head) * 1.4426950408889634f : -INFINITY;
  const float one = sinks && lane % 4 == 0 ? 1.0f : 0.0f;  // sums are over four lanes
  float out[HD / 8][4] = {}, most[2] = {sink, sink}, sum[2] = {one, one};
  unsigned queries[HD / 16][4];
  const int row = task.query + warp * 16 + lane / 4;  // this thread's queries: row, row + 8

  for (int block = begin; block < end; ++block) {
    const int stage = (block - begin) & 1;
    if (block + 1 < end) {
      fetch(k_tile + (stage ^ 1) * kTile, k, kv_heads, (block + 1) * KEYS, kv, KEYS);
      fetch(v_tile + (stage ^ 1) * kTile, v, kv_heads, (block + 1) * KEYS, kv, KEYS);
      cp_async_commit();
      cp_async_wait<1>();
    } else {
      cp_async_wait<0>();
    }
    __syncthreads();
    if (block == begin)
#pragma unroll
      for (int d = 0; d < HD / 16; ++d)
        ldmatrix_x4(queries[d], q_tile + place<HD>(warp * 16 + lane % 16, 2 * d + lane / 16));

    float score[KEYS / 8][4] = {};
#pragma unroll
    for (int d = 0; d < HD / 16; ++d)
#pragma unroll
      for (int n = 0; n < KEYS / 16; ++n) {
        unsigned b[4];
        ldmatrix_x4(b, k_tile + stage * kTile + place<HD>(n * 16 + (lane / 16) * 8 + lane % 8, 2 * d + (lane / 8) % 2));
        mma_m16n8k16<kBf16<T>>(score[2 * n], queries[d], b[0], b[1]);
        mma_m16n8k16<kBf16<T>>(score[2 * n + 1], queries[d], b[2], b[3]);
      }

    if (cap > 0) {
      const float inverse = 1.0f / cap;
#pragma unroll
      for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) score[n][i] = cap * tanhf(score[n][i] * inverse);
    }

    const int key = block * KEYS;
    // Only tiles that reach past the diagonal or below a window hold keys that some query does not see.
    if (key + KEYS > task.query + 1 || (window > 0 && key < last - window)) {
#pragma unroll
      for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int t = row + (i / 2) * 8, at = key + n * 8 + (lane % 4) * 2 + i % 2;
          if (at > t || (window > 0 && at <= t - window)) score[n][i] = -INFINITY;
        }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float peak = most[r];
#pragma unroll
      for (int n = 0; n < KEYS / 8; ++n) peak = fmaxf(peak, fmaxf(score[n][2 * r], score[n][2 * r + 1]));
      peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 1));
      peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 2));
      const float base = peak == -INFINITY ? 0.0f : peak;  // nothing seen yet: exp2(-inf) = 0 below, never NaN
      const float shrink = exp2f(most[r] - base);
      most[r] = peak;
      sum[r] *= shrink;
#pragma unroll
      for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          score[n][i] = exp2f(score[n][i] - base);
          sum[r] += score[n][i];
        }
#pragma unroll
      for (int d = 0; d < HD / 8; ++d) {
        out[d][2 * r] *= shrink;
        out[d][2 * r + 1] *= shrink;
      }
    }
#pragma unroll
    for (int n = 0; n < KEYS / 16; ++n) {
      const unsigned p[4] = {pair<T>(score[2 * n][0], score[2 * n][1]), pair<T>(score[2 * n][2], score[2 * n][3]),
                             pair<T>(score[2 * n + 1][0], score[2 * n + 1][1]),
                             pair<T>(score[2 * n + 1][2], score[2 * n + 1][3])};
#pragma unroll
      for (int d = 0; d < HD / 16; ++d) {
        unsigned b[4];
        ldmatrix_x4_trans(b, v_tile + stage * kTile + place<HD>(n * 16 + lane % 16, 2 * d + lane / 16));
        mma_m16n8k16<kBf16<T>>(out[2 * d], p, b[0], b[1]);
        mma_m16n8k16<kBf16<T>>(out[2 * d + 1], p, b[2], b[3]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float total = sum[r];
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    const int t = row + r * 8;
    if (t >= last) continue;
    Y* to = y + (static_cast<index_t>(task.first + t) * heads + head) * width;
    const float factor = 1.0f / total;
#pragma unroll
    for (int d = 0; d < HD / 8; ++d)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int c = d * 8 + (lane % 4) * 2 + i;
        if (c < width) to[c] = narrow<Y>(out[d][2 * r + i] * factor);
      }
  }
}

}  // namespace lpq::cuda
