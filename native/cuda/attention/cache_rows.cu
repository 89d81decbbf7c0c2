// Rows of keys and values: how they are kept, and attention over them for what the tensor cores' kernel does not take.
#include "cuda/attention/rope_append.h"
#include "cuda/ptx/griddepcontrol.cuh"
#include "cuda/types.cuh"

using namespace lpq;

namespace {

__device__ __forceinline__ void store_any(void* p, int type, index_t i, float v) {
  if (type == 0) static_cast<float*>(p)[i] = v;
  else if (type == 1) static_cast<f16*>(p)[i] = narrow<f16>(v);
  else static_cast<bf16*>(p)[i] = narrow<bf16>(v);
}

// The sequence of new token t.
__device__ __forceinline__ int sequence_of(const int* starts, int sequences, int t) {
  int low = 0, high = sequences;
  while (low + 1 < high) {
    const int middle = (low + high) / 2;
    if (starts[middle] <= t) low = middle;
    else high = middle;
  }
  return low;
}

// A block a token: its row of x, f32 or 16 bits, becomes row total - new + i of its slot.
template <class T>
__device__ void append(const void* k, const void* v, int x_type, index_t k_pitch, index_t v_pitch, T* keys, T* values,
                       const int* starts, const int* slots, const int* totals, int sequences, int tokens,
                       int slots_count, int rows, int key_width, int value_width, unsigned* fault) {
  const int t = blockIdx.x, s = sequence_of(starts, sequences, t), first = starts[s], fresh = starts[s + 1] - first,
            slot = slots[s];
  if (starts[0] != 0 || starts[sequences] != tokens || t < first || t >= first + fresh || totals[s] < fresh ||
      totals[s] > rows || slot < 0 || slot >= slots_count) {
    if (threadIdx.x == 0) *fault = 1;
    return;
  }
  const index_t row = static_cast<index_t>(slot) * rows + totals[s] - fresh + t - first;
  for (int i = threadIdx.x; i < key_width; i += blockDim.x)
    keys[row * key_width + i] = narrow<T>(load_any(k, x_type, t * k_pitch + i));
  for (int i = threadIdx.x; i < value_width; i += blockDim.x)
    values[row * value_width + i] = narrow<T>(load_any(v, x_type, t * v_pitch + i));
}

// The same by all lanes of a warp, in one round of loads for up to 32 sequences.
__device__ __forceinline__ int sequence_by_warp(const int* starts, int sequences, int t) {
  int begun = 0;
  for (int first = 0; first < sequences; first += 32) {
    const int s = first + static_cast<int>(threadIdx.x & 31);
    begun += warp_sum(s < sequences && starts[s] <= t ? 1 : 0);
  }
  return max(begun - 1, 0);
}

// q turned to y, k turned and v as it is to their slots, q and k normalised first where they have norms; layout:
// rope_append.h. PAIRS: of a lane, and half of its dims that do not turn.
template <class T, int PAIRS>
__device__ void rope_append(const cuda::RopeAppendArgs& a) {
  cuda::griddepcontrol_launch_and_wait();
  const int lane = threadIdx.x & 31, all = a.heads + 2 * a.kv_heads,
            parts = (all + cuda::kAppendWarps - 1) / cuda::kAppendWarps;
  const int t = blockIdx.x / parts,
            item = static_cast<int>(blockIdx.x % parts) * cuda::kAppendWarps + static_cast<int>(threadIdx.x / 32);
  if (item >= all) return;
  const bool query = item < a.heads, value = item >= a.heads + a.kv_heads;
  const int head = query ? item : value ? item - a.heads - a.kv_heads : item - a.heads;
  const int width = value ? a.value_dim : a.head_dim, rotary = value ? 0 : a.rotary, half = rotary / 2;
  const void* from = query ? a.q : value ? a.v : a.k;
  const index_t source = t * (query ? a.q_pitch : value ? a.v_pitch : a.k_pitch) + static_cast<index_t>(head) * width;
  float one[PAIRS] = {}, two[PAIRS] = {}, rest[2 * PAIRS] = {};
  // The type is asked for once, so that all loads are under way together.
  const auto load = [&](const auto* x) {
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      const int p = lane + 32 * i;
      if (p < half) one[i] = widen(x[a.halves ? p : 2 * p]), two[i] = widen(x[a.halves ? p + half : 2 * p + 1]);
    }
#pragma unroll
    for (int i = 0; i < 2 * PAIRS; ++i)
      if (rotary + lane + 32 * i < width) rest[i] = widen(x[rotary + lane + 32 * i]);
  };
  if (a.x_type == 0) load(static_cast<const float*>(from) + source);
  else if (a.x_type == 1) load(static_cast<const f16*>(from) + source);
  else load(static_cast<const bf16*>(from) + source);
  if (const void* norm = query ? a.q_norm : value ? nullptr : a.k_norm) {
    const int norm_type = query ? a.q_norm_type : a.k_norm_type;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) sum = __fmaf_rn(two[i], two[i], __fmaf_rn(one[i], one[i], sum));
#pragma unroll
    for (int i = 0; i < 2 * PAIRS; ++i) sum = __fmaf_rn(rest[i], rest[i], sum);
    const float factor = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(width) + a.eps);
    const auto gain = [&](int c) { return load_any(norm, norm_type, c) + a.offset; };
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      const int p = lane + 32 * i;
      if (p < half)
        one[i] = one[i] * factor * gain(a.halves ? p : 2 * p),
        two[i] = two[i] * factor * gain(a.halves ? p + half : 2 * p + 1);
    }
#pragma unroll
    for (int i = 0; i < 2 * PAIRS; ++i)
      if (rotary + lane + 32 * i < width) rest[i] = rest[i] * factor * gain(rotary + lane + 32 * i);
  }
  const int position = rotary > 0 ? a.positions[t] : 0;
  const int s = sequence_by_warp(a.starts, a.sequences, t), first = a.starts[s], fresh = a.starts[s + 1] - first,
            slot = a.slots[s], total = a.totals[s];
  if (a.starts[0] != 0 || a.starts[a.sequences] != a.tokens || t < first || t >= first + fresh || total < fresh ||
      total > a.rows || slot < 0 || slot >= a.slots_count) {
    if (lane == 0) *a.fault = 1;
    return;
  }
  if (position < 0 || (rotary > 0 && position >= a.places)) {
    if (lane == 0) *a.outside = 1;
    return;
  }
  const index_t row = static_cast<index_t>(slot) * a.rows + total - fresh + t - first;
  const index_t target = query ? (static_cast<index_t>(t) * a.heads + head) * width : (row * a.kv_heads + head) * width;
  const auto store = [&](int c, float v) {
    if (query) store_any(a.y, a.y_type, target + c, v);
    else static_cast<T*>(value ? a.values : a.keys)[target + c] = narrow<T>(v);
  };
#pragma unroll
  for (int i = 0; i < PAIRS; ++i) {
    const int p = lane + 32 * i;
    if (p >= half) continue;
    const float c = a.cosines[static_cast<index_t>(position) * half + p],
                sine = a.sines[static_cast<index_t>(position) * half + p];
    store(a.halves ? p : 2 * p, one[i] * c - two[i] * sine);
    store(a.halves ? p + half : 2 * p + 1, two[i] * c + one[i] * sine);
  }
#pragma unroll
  for (int i = 0; i < 2 * PAIRS; ++i)
    if (rotary + lane + 32 * i < width) store(rotary + lane + 32 * i, rest[i]);
}

// In fp32 throughout: one warp a query and head; lanes share tokens for the scores and dims for the output. Up to 256
// dims.
template <class T>
__device__ void attend(const void* q, int q_type, const T* keys, const T* values, T* y, const int* starts,
                       const int* slots, const int* totals, int sequences, int tokens, int slots_count, int rows,
                       int heads, int kv_heads, int head_dim, int value_dim, float scale, int window, float cap,
                       const void* sinks, int sinks_type, unsigned* fault) {
  const index_t task = static_cast<index_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (task >= static_cast<index_t>(tokens) * heads) return;
  const int t = static_cast<int>(task / heads), head = static_cast<int>(task % heads), kv = head / (heads / kv_heads),
            lane = threadIdx.x;
  const int s = sequence_of(starts, sequences, t), fresh = starts[s + 1] - starts[s], slot = slots[s],
            own = totals[s] - fresh + t - starts[s];
  if (starts[0] != 0 || starts[sequences] != tokens || fresh <= 0 || totals[s] < fresh || totals[s] > rows ||
      slot < 0 || slot >= slots_count || own < 0 || own >= rows) {
    if (lane == 0) *fault = 1;
    return;
  }
  const index_t base = static_cast<index_t>(slot) * rows;
  const index_t query = (static_cast<index_t>(t) * heads + head) * head_dim;
  float out[8] = {}, most = sinks ? load_any(sinks, sinks_type, head) : -INFINITY, sum = sinks ? 1.0f : 0.0f;
  for (int first = window > 0 ? max(0, own - window + 1) : 0; first <= own; first += 32) {
    const int key = first + lane;
    float score = -INFINITY;
    if (key <= own) {
      const T* row = keys + ((base + key) * kv_heads + kv) * head_dim;
      float dot = 0;
      for (int c = 0; c < head_dim; ++c) dot = __fmaf_rn(load_any(q, q_type, query + c), widen(row[c]), dot);
      score = dot * scale;
      if (cap > 0) score = cap * tanhf(score / cap);
    }
    const float peak = fmaxf(most, warp_max(score)), shrink = expf(most - peak),
                share = key <= own ? expf(score - peak) : 0.0f;
    sum = sum * shrink + warp_sum(share);
    most = peak;
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] *= shrink;
    for (int j = 0; j < 32 && first + j <= own; ++j) {
      const float p = __shfl_sync(0xffffffffu, share, j);
      const T* row = values + ((base + first + j) * kv_heads + kv) * value_dim;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (lane + 32 * i < value_dim) out[i] = __fmaf_rn(p, widen(row[lane + 32 * i]), out[i]);
    }
  }
  T* to = y + (static_cast<index_t>(t) * heads + head) * value_dim;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (lane + 32 * i < value_dim) to[lane + 32 * i] = narrow<T>(out[i] / sum);
}

}  // namespace

#define LPQ_CACHE_ROWS(type, name)                                                                                    \
  extern "C" __global__ void lpq_cache_append_##name(                                                                 \
      const void* k, const void* v, int x_type, index_t k_pitch, index_t v_pitch, type* keys, type* values,           \
      const int* starts, const int* slots, const int* totals, int sequences, int tokens, int slots_count, int rows,   \
      int key_width, int value_width, unsigned* fault) {                                                              \
    append<type>(k, v, x_type, k_pitch, v_pitch, keys, values, starts, slots, totals, sequences, tokens, slots_count, \
                 rows, key_width, value_width, fault);                                                                \
  }                                                                                                                   \
  extern "C" __global__ void lpq_rope_append_##name(const __grid_constant__ cuda::RopeAppendArgs a) {                 \
    rope_append<type, cuda::kMostHeadDim / 64>(a);                                                                    \
  }                                                                                                                   \
  extern "C" __global__ void lpq_rope_append_wide_##name(const __grid_constant__ cuda::RopeAppendArgs a) {            \
    rope_append<type, cuda::kMostWideHeadDim / 64>(a);                                                                \
  }                                                                                                                   \
  extern "C" __global__ void lpq_cached_attention_plain_##name(                                                       \
      const void* q, int q_type, const type* keys, const type* values, type* y, const int* starts, const int* slots,  \
      const int* totals, int sequences, int tokens, int slots_count, int rows, int heads, int kv_heads, int head_dim, \
      int value_dim, float scale, int window, float cap, const void* sinks, int sinks_type, unsigned* fault) {        \
    attend<type>(q, q_type, keys, values, y, starts, slots, totals, sequences, tokens, slots_count, rows, heads,      \
                 kv_heads, head_dim, value_dim, scale, window, cap, sinks, sinks_type, fault);                        \
  }
LPQ_EACH_TYPE(LPQ_CACHE_ROWS)
