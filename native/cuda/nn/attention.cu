// Attention's kernels: instantiations of attention.cuh, the list of tasks, heads packed for them, and attention in
// fp32.
#include "cuda/nn/attention.cuh"

using namespace lpq;
using namespace lpq::cuda;

#define LPQ_FLASH(type, y_type, name, hd, keys)                                                                        \
  extern "C" __global__ void __launch_bounds__(kFlashWarps * 32) lpq_attention_##name##_##hd(                          \
      const type* q, const type* k, const type* v, y_type* y, const AttentionTask* tasks, const int* count, int heads, \
      int kv_heads, int width, int window, float cap, const void* sinks, int sinks_type) {                             \
    flash<type, y_type, hd, keys>(q, k, v, y, tasks, count, heads, kv_heads, width, window, cap, sinks, sinks_type,    \
                                  blockIdx.x, blockIdx.y);                                                             \
  }
#define LPQ_FLASH_DIMS(type, y_type, name) \
  LPQ_FLASH(type, y_type, name, 32, 64)    \
  LPQ_FLASH(type, y_type, name, 64, 64)    \
  LPQ_FLASH(type, y_type, name, 128, 64)   \
  LPQ_FLASH(type, y_type, name, 256, 32)
LPQ_FLASH_DIMS(bf16, bf16, bf16)
LPQ_FLASH_DIMS(f16, f16, f16)
LPQ_FLASH_DIMS(bf16, float, bf16_f32)

// Tasks of all sequences, sequence by sequence, and how many there are. One thread: there are few sequences.
extern "C" __global__ void lpq_attention_tasks(const int* starts, int sequences, int tokens, AttentionTask* tasks,
                                               int room, int* count, unsigned* fault) {
  int made = 0, at = 0;
  bool bad = starts[0] != 0 || starts[sequences] != tokens;
  for (int s = 0; s < sequences && !bad; ++s) {
    const int end = starts[s + 1];
    bad = end < at || end > tokens;
    for (int query = 0; query < end - at && !bad; query += kTaskQueries) {
      if (made == room) bad = true;
      else tasks[made++] = {at, end - at, query};
    }
    at = end;
  }
  if (bad) *fault = 1;
  *count = bad ? 0 : made;
}

// to [T, heads, padded] = from [T, heads, width] * factor, zero beyond the width; `pitch` elements from a token to the
// next.
#define LPQ_PACK_HEADS(from_type, from_name, to_type, to_name)                                                        \
  extern "C" __global__ void lpq_pack_heads_##from_name##_##to_name(const from_type* from, to_type* to, index_t rows, \
                                                                    int heads, index_t pitch, int width, int padded,  \
                                                                    int fours, float factor) {                        \
    const index_t step = static_cast<index_t>(gridDim.x) * blockDim.x, quads = padded / 4;                            \
    for (index_t i = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < rows * quads; i += step) {      \
      const index_t row = i / quads;                                                                                  \
      const from_type* source = from + row / heads * pitch + row % heads * width;                                     \
      const int c = static_cast<int>(i % quads) * 4;                                                                  \
      float4 value = make_float4(0, 0, 0, 0);                                                                         \
      if (fours) {                                                                                                    \
        if (c < width) value = load4(source + c);                                                                     \
      } else {                                                                                                        \
        float* parts = &value.x;                                                                                      \
        for (int j = 0; j < 4; ++j)                                                                                   \
          if (c + j < width) parts[j] = widen(source[c + j]);                                                         \
      }                                                                                                               \
      store4(to + row * padded + c,                                                                                   \
             make_float4(value.x * factor, value.y * factor, value.z * factor, value.w * factor));                    \
    }                                                                                                                 \
  }
LPQ_PACK_HEADS(float, f32, bf16, bf16)
LPQ_PACK_HEADS(float, f32, f16, f16)
LPQ_PACK_HEADS(bf16, bf16, bf16, bf16)
LPQ_PACK_HEADS(f16, f16, f16, f16)

// In fp32 throughout, for runs whose activations are f32: one warp a query and head; lanes share keys for the scores
// and value dimensions for the output. Head dimensions up to 256.
extern "C" __global__ void lpq_attention_f32(const float* q, const float* k, const float* v, index_t q_pitch,
                                             index_t k_pitch, index_t v_pitch, float* y, const int* starts,
                                             int sequences, int tokens, int heads, int kv_heads, int head_dim,
                                             int value_dim, float scale, int window, float cap, const void* sinks,
                                             int sinks_type) {
  const index_t task = static_cast<index_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (task >= static_cast<index_t>(tokens) * heads) return;
  const int t = static_cast<int>(task / heads), head = static_cast<int>(task % heads), kv = head / (heads / kv_heads),
            lane = threadIdx.x;
  int low = 0, high = sequences;  // the sequence of t
  while (low + 1 < high) {
    const int middle = (low + high) / 2;
    if (starts[middle] <= t) low = middle;
    else high = middle;
  }
  int first = starts[low];
  if (window > 0) first = max(first, t - window + 1);
  const float* query = q + t * q_pitch + head * head_dim;
  float out[8] = {}, most = sinks ? load_any(sinks, sinks_type, head) : -INFINITY, sum = sinks ? 1.0f : 0.0f;
  for (int base = first; base <= t; base += 32) {
    const int key = base + lane;
    float score = -INFINITY;
    if (key <= t) {
      const float* row = k + key * k_pitch + kv * head_dim;
      float dot = 0;
      for (int c = 0; c < head_dim; ++c) dot = __fmaf_rn(query[c], row[c], dot);
      score = dot * scale;
      if (cap > 0) score = cap * tanhf(score / cap);
    }
    const float peak = fmaxf(most, warp_max(score)), shrink = expf(most - peak),
                share = key <= t ? expf(score - peak) : 0.0f;
    sum = sum * shrink + warp_sum(share);
    most = peak;
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] *= shrink;
    for (int j = 0; j < 32 && base + j <= t; ++j) {
      const float p = __shfl_sync(0xffffffffu, share, j);
      const float* row = v + (base + j) * v_pitch + kv * value_dim;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (lane + 32 * i < value_dim) out[i] = __fmaf_rn(p, row[lane + 32 * i], out[i]);
    }
  }
  float* to = y + (static_cast<index_t>(t) * heads + head) * value_dim;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (lane + 32 * i < value_dim) to[lane + 32 * i] = out[i] / sum;
}
