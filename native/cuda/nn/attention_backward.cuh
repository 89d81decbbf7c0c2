// The gradient of causal attention on tensor cores (Dao 2023, arXiv:2307.08691, algorithm 2), in two passes, so that no
// sum is over blocks: by blocks of queries, which find each query's log-sum-exp L and D = sum_j P_j dP_j, then dq; by
// blocks of keys of one kv head, which walk over the queries of its heads in order, for dk and dv.
//   P = 2^(S - L), dP = dy vᵀ, dS = P (dP - D) (1 - (S / cap)^2), dq = dS k scale, dk = dSᵀ q scale, dv = Pᵀ dy
// Operands are bf16 (P and dS rounded once each), sums and all between them fp32.
#pragma once
#include "cuda/nn/attention_tiles.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

// q [T, heads, HD] times scale log2(e), k [T, kv_heads, HD], v [T, kv_heads, VD], dy [T, heads, VD]: zero beyond their
// width. rows: L, D of each head's 64 queries of each task, [heads, room, 64]. tasks: of all sequences, in order. cap
// in units of scores, times log2(e). Outputs as ops/backward.h has them.
struct AttentionGradient {
  const bf16 *q, *k, *v, *dy;
  float2* rows;
  float *dq, *dk, *dv;
  const AttentionTask* tasks;
  const int* count;
  const void* sinks;  // null, or a logit a head, of a type as load_any() reads it
  int sinks_type, room, heads, kv_heads, head_dim, value_dim, window;
  float scale, cap;
};

// cap tanh(score / cap), and no score of what a query does not see. dt: what to add to column - row to have key - token
// where rows are queries, token - key (`by_keys`) where they are keys.
template <int N, bool BY_KEYS>
__device__ __forceinline__ void cap_and_mask(float (&scores)[N / 8][4], float cap, bool mask, int row, int column,
                                             int window) {
  const int lane = threadIdx.x % 32;
  if (cap > 0) {
    const float inverse = 1.0f / cap;
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] = cap * tanhf(scores[n][i] * inverse);
  }
  if (!mask) return;
#pragma unroll
  for (int n = 0; n < N / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = row + lane / 4 + i / 2 * 8, c = column + n * 8 + lane % 4 * 2 + i % 2,
                behind = BY_KEYS ? c - r : r - c;
      if (behind < 0 || (window > 0 && behind >= window)) scores[n][i] = -INFINITY;
    }
}

// Scores become shares P, and dP dS; row(n, i): L and D of an element's query.
template <int N, class Row>
__device__ __forceinline__ void shares_and_slopes(float (&scores)[N / 8][4], float (&slopes)[N / 8][4], float cap,
                                                  Row row) {
  if (cap > 0) {
    const float inverse = 1.0f / cap;
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 of = row(n, i);
        const float part = fmaxf(scores[n][i], -cap) * inverse;  // 0 is what comes of a score that is not there
        scores[n][i] = ex2_approx(scores[n][i] - of.x);
        slopes[n][i] = scores[n][i] * (slopes[n][i] - of.y) * __fmaf_rn(-part, part, 1.0f);
      }
  } else {
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 of = row(n, i);
        scores[n][i] = ex2_approx(scores[n][i] - of.x);
        slopes[n][i] = scores[n][i] * (slopes[n][i] - of.y);
      }
  }
}

template <int HD, int VD, int KEYS, bool RESIDENT>
struct RowsShape {
  static constexpr int kKey = KEYS * HD * 2, kValue = KEYS * VD * 2, kQuery = kTaskQueries * HD * 2;
  static constexpr int kShared = kQuery + kTaskQueries * VD * 2 + 2 * (kKey + kValue);
};

// 64 queries of a head, 16 a warp: L and D by one walk over their keys, dq by another. RESIDENT: q and dy stay in
// registers.
template <int HD, int VD, int KEYS, bool RESIDENT>
__device__ __forceinline__ void gradient_by_rows(const AttentionGradient& a, int head, int which) {
  if (which >= *a.count) return;
  const int index = *a.count - 1 - which;  // long walks first
  const AttentionTask task = a.tasks[index];
  using Shape = RowsShape<HD, VD, KEYS, RESIDENT>;
  const unsigned q_tile = shared_address(dynamic_shared()), dy_tile = q_tile + Shape::kQuery,
                 tiles = dy_tile + kTaskQueries * VD * 2;
  const int kv = head / (a.heads / a.kv_heads), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int last = min(task.query + kTaskQueries, task.length);
  const int begin = a.window > 0 ? max(0, task.query - a.window + 1) / KEYS : 0, end = (last + KEYS - 1) / KEYS,
            steps = end - begin;

  const auto fetch = [&](int step) {
    const int key = (begin + (step < steps ? step : step - steps)) * KEYS;
    const unsigned k_tile = tiles + (step & 1) * (Shape::kKey + Shape::kValue);
    const index_t row = static_cast<index_t>(task.first + key) * a.kv_heads + kv;
    fetch_rows<HD, KEYS>(k_tile, a.k + row * HD, static_cast<index_t>(a.kv_heads) * HD, task.length - key);
    fetch_rows<VD, KEYS>(k_tile + Shape::kKey, a.v + row * VD, static_cast<index_t>(a.kv_heads) * VD,
                         task.length - key);
    cp_async_commit();
  };
  const index_t first = static_cast<index_t>(task.first + task.query) * a.heads + head;
  fetch_rows<HD, kTaskQueries>(q_tile, a.q + first * HD, static_cast<index_t>(a.heads) * HD, task.length - task.query);
  fetch_rows<VD, kTaskQueries>(dy_tile, a.dy + first * VD, static_cast<index_t>(a.heads) * VD,
                               task.length - task.query);
  fetch(0);

  unsigned queries[RESIDENT ? HD / 16 : 1][4], gradients[RESIDENT ? VD / 16 : 1][4];
  const auto query = [&](unsigned (&left)[4], int d) {
    if constexpr (RESIDENT)
      for (int i = 0; i < 4; ++i) left[i] = queries[d][i];
    else rows_of<HD>(left, q_tile, warp * 16, d);
  };
  const auto gradient = [&](unsigned (&left)[4], int d) {
    if constexpr (RESIDENT)
      for (int i = 0; i < 4; ++i) left[i] = gradients[d][i];
    else rows_of<VD>(left, dy_tile, warp * 16, d);
  };
  // Scores, capped and masked, and dP of one tile of keys, whose address it returns.
  const auto products = [&](int step, float (&scores)[KEYS / 8][4], float (&slopes)[KEYS / 8][4]) {
    if (step + 1 < 2 * steps) {
      fetch(step + 1);
      cp_async_wait<1>();
    } else {
      cp_async_wait<0>();
    }
    __syncthreads();
    if constexpr (RESIDENT) {
      if (step == 0) {
#pragma unroll
        for (int d = 0; d < HD / 16; ++d) rows_of<HD>(queries[d], q_tile, warp * 16, d);
#pragma unroll
        for (int d = 0; d < VD / 16; ++d) rows_of<VD>(gradients[d], dy_tile, warp * 16, d);
      }
    }
    const unsigned k_tile = tiles + (step & 1) * (Shape::kKey + Shape::kValue);
    times_transposed<HD, KEYS, bf16>(scores, k_tile, query);
    times_transposed<VD, KEYS, bf16>(slopes, k_tile + Shape::kKey, gradient);
    const int key = (begin + (step < steps ? step : step - steps)) * KEYS;
    // Only tiles that reach past the diagonal or below a window hold keys that some query does not see.
    const bool mask = key + KEYS > task.query + 1 || (a.window > 0 && key < last - a.window);
    cap_and_mask<KEYS, false>(scores, a.cap, mask, task.query + warp * 16, key, a.window);
    return k_tile;
  };

  const float sink = a.sinks ? load_any(a.sinks, a.sinks_type, head) * 1.4426950408889634f : -INFINITY;
  const float one = a.sinks && lane % 4 == 0 ? 1.0f : 0.0f;  // sums are over four lanes
  float most[2] = {sink, sink}, sum[2] = {one, one}, dot[2] = {};
  for (int step = 0; step < steps; ++step) {
    float scores[KEYS / 8][4] = {}, slopes[KEYS / 8][4] = {};
    products(step, scores, slopes);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float peak = most[r];
#pragma unroll
      for (int n = 0; n < KEYS / 8; ++n) peak = fmaxf(peak, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
      peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 1));
      peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 2));
      const float base = peak == -INFINITY ? 0.0f : peak,
                  shrink = ex2_approx(most[r] - base);  // nothing seen yet: no NaN
      most[r] = peak;
      sum[r] *= shrink, dot[r] *= shrink;
#pragma unroll
      for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          const float p = ex2_approx(scores[n][i] - base);
          sum[r] += p;
          dot[r] = __fmaf_rn(p, slopes[n][i], dot[r]);
        }
    }
    __syncthreads();
  }
  float2 row[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    for (int step = 1; step < 4; step *= 2) {
      sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], step);
      dot[r] += __shfl_xor_sync(0xffffffffu, dot[r], step);
    }
    const int at = warp * 16 + lane / 4 + r * 8;
    // Of queries beyond the sequence, whose q and dy are 0: what makes their part of dk and dv 0.
    row[r] = task.query + at < last ? make_float2(most[r] + log2f(sum[r]), dot[r] / sum[r]) : make_float2(0, 0);
    if (lane % 4 == 0) a.rows[(static_cast<index_t>(head) * a.room + index) * kTaskQueries + at] = row[r];
  }

  float out[HD / 8][4] = {};
  for (int step = steps; step < 2 * steps; ++step) {
    float scores[KEYS / 8][4] = {}, slopes[KEYS / 8][4] = {};
    const unsigned k_tile = products(step, scores, slopes);
    shares_and_slopes<KEYS>(scores, slopes, a.cap, [&](int, int i) { return row[i / 2]; });
    times_rows<HD, HD, KEYS, bf16>(out, slopes, k_tile, 0);
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int t = task.query + warp * 16 + lane / 4 + r * 8;
    if (t >= last) continue;
    float* const to = a.dq + (static_cast<index_t>(task.first + t) * a.heads + head) * a.head_dim;
#pragma unroll
    for (int d = 0; d < HD / 8; ++d)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int c = d * 8 + lane % 4 * 2 + i;
        if (c < a.head_dim) to[c] = out[d][2 * r + i] * a.scale;
      }
  }
}

template <int HD, int VD, int KEYS, int QUERIES>
struct ColumnsShape {
  static constexpr int kSplit = 4 * 16 / KEYS;  // warps that share 16 keys: each has a part of the columns
  static constexpr int kKey = KEYS * HD * 2, kQuery = QUERIES * HD * 2, kGradient = QUERIES * VD * 2,
                       kStage = kQuery + kGradient + QUERIES * 8;
  static constexpr int kShared = kKey + KEYS * VD * 2 + 2 * kStage;
};

// KEYS keys (64 or 32) of a kv head, 16 a warp or two: dk and dv.
template <int HD, int VD, int KEYS, int QUERIES>
__device__ __forceinline__ void gradient_by_columns(const AttentionGradient& a, int kv, int which) {
  constexpr int kParts = kTaskQueries / KEYS;
  const int index = which / kParts;
  if (index >= *a.count) return;
  const AttentionTask task = a.tasks[index];  // long walks come first in each sequence
  const int first_key = task.query + which % kParts * KEYS;
  if (first_key >= task.length) return;
  using Shape = ColumnsShape<HD, VD, KEYS, QUERIES>;
  const unsigned k_tile = shared_address(dynamic_shared()), v_tile = k_tile + Shape::kKey,
                 tiles = v_tile + KEYS * VD * 2;
  const int group = a.heads / a.kv_heads, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int own = warp / Shape::kSplit * 16, part = warp % Shape::kSplit;
  const int last_key = min(first_key + KEYS, task.length) - 1;
  const int begin = first_key / QUERIES,
            end = ((a.window > 0 ? min(task.length, last_key + a.window) : task.length) + QUERIES - 1) / QUERIES,
            steps = group * (end - begin);

  int next_head = kv * group, next_block = begin;  // of the step that is fetched next
  const auto fetch = [&](int step) {
    const int head = next_head, query = next_block * QUERIES;
    if (++next_block == end) next_block = begin, ++next_head;
    const unsigned q_tile = tiles + (step & 1) * Shape::kStage;
    const index_t row = static_cast<index_t>(task.first + query) * a.heads + head;
    fetch_rows<HD, QUERIES>(q_tile, a.q + row * HD, static_cast<index_t>(a.heads) * HD, task.length - query);
    fetch_rows<VD, QUERIES>(q_tile + Shape::kQuery, a.dy + row * VD, static_cast<index_t>(a.heads) * VD,
                            task.length - query);
    // Tasks of a sequence follow each other, so that its queries are in a row.
    const float2* rows = a.rows + (static_cast<index_t>(head) * a.room + index) * kTaskQueries + (query - task.query);
    const int at = threadIdx.x;
    if (at < QUERIES / 2) cp_async_16(q_tile + Shape::kQuery + Shape::kGradient + at * 16, rows + 2 * at, 16);
    cp_async_commit();
  };
  const index_t first = static_cast<index_t>(task.first + first_key) * a.kv_heads + kv;
  fetch_rows<HD, KEYS>(k_tile, a.k + first * HD, static_cast<index_t>(a.kv_heads) * HD, task.length - first_key);
  fetch_rows<VD, KEYS>(v_tile, a.v + first * VD, static_cast<index_t>(a.kv_heads) * VD, task.length - first_key);
  fetch(0);

  constexpr int kWide = HD / Shape::kSplit, kValues = VD / Shape::kSplit;
  float keys[kWide / 8][4] = {}, values[kValues / 8][4] = {};
  int block = begin;
  for (int step = 0; step < steps; ++step) {
    if (step + 1 < steps) {
      fetch(step + 1);
      cp_async_wait<1>();
    } else {
      cp_async_wait<0>();
    }
    __syncthreads();
    const unsigned q_tile = tiles + (step & 1) * Shape::kStage, dy_tile = q_tile + Shape::kQuery,
                   rows = dy_tile + Shape::kGradient;
    float scores[QUERIES / 8][4] = {}, slopes[QUERIES / 8][4] = {};
    times_transposed<HD, QUERIES, bf16>(scores, q_tile,
                                        [&](unsigned (&left)[4], int d) { rows_of<HD>(left, k_tile, own, d); });
    times_transposed<VD, QUERIES, bf16>(slopes, dy_tile,
                                        [&](unsigned (&left)[4], int d) { rows_of<VD>(left, v_tile, own, d); });
    const int query = block * QUERIES;
    if (++block == end) block = begin;
    const bool mask = query < first_key + KEYS - 1 || (a.window > 0 && query + QUERIES > first_key + a.window);
    cap_and_mask<QUERIES, true>(scores, a.cap, mask, first_key + own, query, a.window);
    float4 of[QUERIES / 8];
#pragma unroll
    for (int n = 0; n < QUERIES / 8; ++n) of[n] = ld_shared_f4(rows + (n * 8 + lane % 4 * 2) * 8);
    shares_and_slopes<QUERIES>(scores, slopes, a.cap, [&](int n, int i) {
      return i % 2 ? make_float2(of[n].z, of[n].w) : make_float2(of[n].x, of[n].y);
    });
    times_rows<VD, kValues, QUERIES, bf16>(values, scores, dy_tile, part * kValues);
    times_rows<HD, kWide, QUERIES, bf16>(keys, slopes, q_tile, part * kWide);
    __syncthreads();
  }
  constexpr float kLn2 = 0.6931471805599453f;  // q has log2(e) in it
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int key = first_key + own + lane / 4 + r * 8;
    if (key > last_key) continue;
    const index_t row = static_cast<index_t>(task.first + key) * a.kv_heads + kv;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int d = 0; d < kWide / 8; ++d) {
        const int c = part * kWide + d * 8 + lane % 4 * 2 + i;
        if (c < a.head_dim) a.dk[row * a.head_dim + c] = keys[d][2 * r + i] * kLn2;
      }
#pragma unroll
      for (int d = 0; d < kValues / 8; ++d) {
        const int c = part * kValues + d * 8 + lane % 4 * 2 + i;
        if (c < a.value_dim) a.dv[row * a.value_dim + c] = values[d][2 * r + i];
      }
    }
  }
}

}  // namespace lpq::cuda
