// The gradient of attention in fp32 throughout, by the formulas of attention_backward.cuh: a warp a query and head for
// the log-sum-exp L, D and dq, a warp a key and kv head for dk and dv, which walks over the queries of its heads in
// order. Queries see the keys before them, or those of `selected`.
//   lane -> one of 32 keys (queries) for the products, then columns lane, lane + 32, ... of the sums
#pragma once
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/types.cuh"

namespace lpq::cuda {

constexpr int kGradientWarps = 4;

struct ChainedGradient {
  const float *q, *k, *v, *dy;
  const int *starts, *count, *selected;  // count: 0 where starts are bad; selected: null, or [T, choices, top]
  const void* sinks;
  unsigned* seen;  // bits of runs of `block` tokens, `words` a token and choice
  float2* rows;    // L and D [T, heads]
  float *dq, *dk, *dv;
  int sequences, tokens, heads, kv_heads, head_dim, value_dim, window, sinks_type, choices, top, block, words, fours;
  float scale, cap;
};

struct Span {
  int first, end;
};
__device__ inline Span sequence_of(const ChainedGradient& a, int t) {
  int low = 0, high = a.sequences;
  while (low + 1 < high) {
    const int middle = (low + high) / 2;
    if (a.starts[middle] <= t) low = middle;
    else high = middle;
  }
  return {a.starts[low], a.starts[low + 1]};
}

__device__ inline float dot(const float* one, const float* other, int count, int fours) {
  float sum = 0;
  if (fours) {
    for (int c = 0; c < count; c += 4) {
      const float4 x = load4(one + c), y = load4(other + c);
      sum = __fmaf_rn(x.w, y.w, __fmaf_rn(x.z, y.z, __fmaf_rn(x.y, y.y, __fmaf_rn(x.x, y.x, sum))));
    }
  } else {
    for (int c = 0; c < count; ++c) sum = __fmaf_rn(one[c], other[c], sum);
  }
  return sum;
}

struct Score {
  float capped, slope;  // and the cap's derivative
};
__device__ inline Score score_of(const ChainedGradient& a, float product) {
  const float score = product * a.scale;
  if (a.cap <= 0) return {score, 1.0f};
  const float part = tanhf(score / a.cap);
  return {a.cap * part, __fmaf_rn(-part, part, 1.0f)};
}

// A query: which of its n-th candidates is a key that it sees, or -1.
struct Candidates {
  const int* list;
  int first, lowest, behind, block, count;
  __device__ Candidates(const ChainedGradient& a, int t, int head) {
    first = sequence_of(a, t).first, behind = t - first, block = a.block;
    list = a.selected ? a.selected + (static_cast<index_t>(t) * a.choices + head / (a.heads / a.choices)) * a.top
                      : nullptr;
    lowest = a.window > 0 ? max(0, behind - a.window + 1) : 0;
    count = list ? a.top * block : behind + 1 - lowest;
  }
  __device__ int operator()(int n) const {
    if (n >= count) return -1;
    if (!list) return lowest + n;
    const int run = list[n / block], key = run * block + n % block;
    return run < 0 || run > behind / block || key > behind ? -1 : key;
  }
};

template <int DIMS>
__device__ void chained_by_rows(const ChainedGradient& a, int block) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* const own = reinterpret_cast<float*>(dynamic_shared()) + warp * (a.head_dim + a.value_dim);
  const index_t task = static_cast<index_t>(block) * kGradientWarps + warp;
  if (*a.count == 0 || task >= static_cast<index_t>(a.tokens) * a.heads) return;
  const int t = static_cast<int>(task / a.heads), head = static_cast<int>(task % a.heads),
            kv = head / (a.heads / a.kv_heads);
  float *const query = own, *const gradient = query + a.head_dim;
  for (int c = lane; c < a.head_dim; c += 32) query[c] = a.q[task * a.head_dim + c];
  for (int c = lane; c < a.value_dim; c += 32) gradient[c] = a.dy[task * a.value_dim + c];
  __syncwarp();
  const Candidates key_of(a, t, head);
  const auto key_row = [&](int key) {
    return a.k + (static_cast<index_t>(key_of.first + key) * a.kv_heads + kv) * a.head_dim;
  };
  const auto value_row = [&](int key) {
    return a.v + (static_cast<index_t>(key_of.first + key) * a.kv_heads + kv) * a.value_dim;
  };

  float most = a.sinks ? load_any(a.sinks, a.sinks_type, head) : -INFINITY, sum = a.sinks ? 1.0f : 0.0f, shared = 0;
  for (int base = 0; base < key_of.count; base += 32) {
    const int key = key_of(base + lane);
    float score = -INFINITY, slope = 0;
    if (key >= 0) {
      score = score_of(a, dot(query, key_row(key), a.head_dim, a.fours)).capped;
      slope = dot(gradient, value_row(key), a.value_dim, a.fours);
    }
    const float peak = fmaxf(most, warp_max(score));
    if (peak == -INFINITY) continue;
    const float shrink = expf(most - peak), share = key >= 0 ? expf(score - peak) : 0.0f;
    sum = __fmaf_rn(sum, shrink, warp_sum(share));
    shared = __fmaf_rn(shared, shrink, warp_sum(share * slope));
    most = peak;
  }
  const float level = most + logf(sum), mean = shared / sum;
  if (lane == 0) a.rows[task] = make_float2(level, mean);

  float out[DIMS] = {};
  for (int base = 0; base < key_of.count; base += 32) {
    const int key = key_of(base + lane);
    float slope = 0;
    if (key >= 0) {
      const Score score = score_of(a, dot(query, key_row(key), a.head_dim, a.fours));
      slope = expf(score.capped - level) * (dot(gradient, value_row(key), a.value_dim, a.fours) - mean) * score.slope;
    }
    for (int j = 0; j < 32 && base + j < key_of.count; ++j) {
      const int at = __shfl_sync(0xffffffffu, key, j);
      const float factor = __shfl_sync(0xffffffffu, slope, j);
      if (at < 0) continue;
      const float* row = key_row(at);
#pragma unroll
      for (int i = 0; i < DIMS; ++i)
        if (lane + 32 * i < a.head_dim) out[i] = __fmaf_rn(factor, row[lane + 32 * i], out[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < DIMS; ++i)
    if (lane + 32 * i < a.head_dim) a.dq[task * a.head_dim + lane + 32 * i] = out[i] * a.scale;
}

template <int DIMS>
__device__ void chained_by_columns(const ChainedGradient& a, int block) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* const own = reinterpret_cast<float*>(dynamic_shared()) + warp * (a.head_dim + a.value_dim);
  const index_t task = static_cast<index_t>(block) * kGradientWarps + warp;
  if (*a.count == 0 || task >= static_cast<index_t>(a.tokens) * a.kv_heads) return;
  const int token = static_cast<int>(task / a.kv_heads), kv = static_cast<int>(task % a.kv_heads),
            group = a.heads / a.kv_heads;
  float *const key = own, *const value = key + a.head_dim;
  for (int c = lane; c < a.head_dim; c += 32) key[c] = a.k[task * a.head_dim + c];
  for (int c = lane; c < a.value_dim; c += 32) value[c] = a.v[task * a.value_dim + c];
  __syncwarp();
  const Span span = sequence_of(a, token);
  const int end = a.window > 0 ? min(span.end, token + a.window) : span.end, run = (token - span.first) / a.block;
  float keys[DIMS] = {}, values[DIMS] = {};
  for (int head = kv * group; head < (kv + 1) * group; ++head)
    for (int base = token; base < end; base += 32) {
      const int t = base + lane;
      bool sees = t < end;
      if (sees && a.selected) {
        const index_t list = static_cast<index_t>(t) * a.choices + head / (a.heads / a.choices);
        sees = a.seen[list * a.words + run / 32] >> run % 32 & 1;
      }
      if (!__any_sync(0xffffffffu, sees)) continue;
      float share = 0, slope = 0;
      if (sees) {
        const index_t row = static_cast<index_t>(t) * a.heads + head;
        const float2 of = a.rows[row];
        const Score score = score_of(a, dot(key, a.q + row * a.head_dim, a.head_dim, a.fours));
        share = expf(score.capped - of.x);
        slope = share * (dot(value, a.dy + row * a.value_dim, a.value_dim, a.fours) - of.y) * score.slope;
      }
      for (int j = 0; j < 32 && base + j < end; ++j) {
        const float p = __shfl_sync(0xffffffffu, share, j), ds = __shfl_sync(0xffffffffu, slope, j);
        if (p == 0 && ds == 0) continue;  // not seen, or as good as that
        const index_t row = static_cast<index_t>(base + j) * a.heads + head;
        const float *query = a.q + row * a.head_dim, *gradient = a.dy + row * a.value_dim;
#pragma unroll
        for (int i = 0; i < DIMS; ++i) {
          const int c = lane + 32 * i;
          if (c < a.head_dim) keys[i] = __fmaf_rn(ds, query[c], keys[i]);
          if (c < a.value_dim) values[i] = __fmaf_rn(p, gradient[c], values[i]);
        }
      }
    }
#pragma unroll
  for (int i = 0; i < DIMS; ++i) {
    const int c = lane + 32 * i;
    if (c < a.head_dim) a.dk[task * a.head_dim + c] = keys[i] * a.scale;
    if (c < a.value_dim) a.dv[task * a.value_dim + c] = values[i];
  }
}

}  // namespace lpq::cuda
