// Gradients of norms, row by row (ops/backward.h). A row is a block's, or of narrow ones a warp's (`by_warp`).
//
// Held rows are read once, in fours: (thread, i) -> columns 4 (thread + i threads) .. + 3, for widths that fours divide
// of at most 16 threads. Any others are read again from cache.
#pragma once
#include "cuda/nn/backward_norms.h"
#include "cuda/types.cuh"

namespace lpq {

struct NormRow {
  const NormGradient& a;
  index_t at;
  int thread, threads;
  index_t first, own;  // element of the row, and of its weight

  __device__ explicit NormRow(const NormGradient& of) : a(of) {
    const int warp = static_cast<int>(threadIdx.x / 32), warps = static_cast<int>(blockDim.x / 32);
    at = a.by_warp ? static_cast<index_t>(blockIdx.x) * warps + warp : static_cast<index_t>(blockIdx.x);
    thread = static_cast<int>(a.by_warp ? threadIdx.x % 32 : threadIdx.x);
    threads = a.by_warp ? 32 : static_cast<int>(blockDim.x);
    first = at * a.width, own = at % a.turns * a.width;
  }

  __device__ float gain(int c) const { return a.weight ? load_any(a.weight, a.weight_type, own + c) + a.offset : 1.0f; }
  __device__ float4 gains(int c) const {
    if (!a.weight) return make_float4(1.0f, 1.0f, 1.0f, 1.0f);
    const index_t from = own + c;
    float4 g;
    if (a.weight_type == 0) g = load4(static_cast<const float*>(a.weight) + from);
    else if (a.weight_type == 1) g = load4(static_cast<const f16*>(a.weight) + from);
    else g = load4(static_cast<const bf16*>(a.weight) + from);
    return make_float4(g.x + a.offset, g.y + a.offset, g.z + a.offset, g.w + a.offset);
  }
  __device__ void put(int c, float made) const {
    float* to = a.dx + first + c;
    *to = a.accumulate ? *to + made : made;
  }
  __device__ void put(int c, float4 made) const {
    float* to = a.dx + first + c;
    if (a.accumulate) {
      const float4 old = load4(to);
      made = make_float4(old.x + made.x, old.y + made.y, old.z + made.z, old.w + made.w);
    }
    store4(to, made);
  }

  // Sums over the row, in every thread. Once a kernel and N: nothing waits for who still reads the parts.
  template <int N>
  __device__ void sum(float (&v)[N]) const {
    __shared__ float parts[N][32];
    for (int n = 0; n < N; ++n) v[n] = warp_sum(v[n]);
    if (a.by_warp) return;
    if (threadIdx.x % 32 == 0)
      for (int n = 0; n < N; ++n) parts[n][threadIdx.x / 32] = v[n];
    __syncthreads();
    for (int n = 0; n < N; ++n) {
      v[n] = 0;
      for (int i = 0; i < threads / 32; ++i) v[n] += parts[n][i];
    }
  }
};

// body(c, x, g dy) of each column of this thread.
struct ReadRow {
  const NormRow& row;
  template <class F>
  __device__ void each(F body) const {
    for (int c = row.thread; c < row.a.width; c += row.threads)
      body(c, row.a.x[row.first + c], row.gain(c) * row.a.dy[row.first + c]);
  }
  template <class F>
  __device__ void put(F made) const {
    each([&](int c, float x, float h) { row.put(c, made(x, h)); });
  }
};
struct HeldRow {
  const NormRow& row;
  float4 x[kHeld], h[kHeld];

  __device__ int column(int i) const { return 4 * (row.thread + i * row.threads); }
  __device__ explicit HeldRow(const NormRow& of) : row(of) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (column(i) < row.a.width)
        x[i] = load4(row.a.x + row.first + column(i)), h[i] = load4(row.a.dy + row.first + column(i));
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (column(i) < row.a.width) {
        const float4 g = row.gains(column(i));
        h[i] = make_float4(g.x * h[i].x, g.y * h[i].y, g.z * h[i].z, g.w * h[i].w);
      }
  }
  template <class F>
  __device__ void each(F body) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (const int c = column(i); c < row.a.width)
        body(c, x[i].x, h[i].x), body(c + 1, x[i].y, h[i].y), body(c + 2, x[i].z, h[i].z), body(c + 3, x[i].w, h[i].w);
  }
  template <class F>
  __device__ void put(F made) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (const int c = column(i); c < row.a.width)
        row.put(c, make_float4(made(x[i].x, h[i].x), made(x[i].y, h[i].y), made(x[i].z, h[i].z), made(x[i].w, h[i].w)));
  }
};

// y = x r g, r = 1 / sqrt(mean x^2 + eps); with h = g dy: dx = r (h - x r^2 mean(h x)).
template <class Columns>
__device__ __forceinline__ void rmsnorm_backward(const NormGradient& a) {
  const NormRow row(a);
  if (row.at >= a.rows) return;
  const Columns columns{row};
  float sums[2] = {};
  columns.each([&](int, float x, float h) {
    sums[0] = __fmaf_rn(x, x, sums[0]);
    sums[1] = __fmaf_rn(h, x, sums[1]);
  });
  row.sum(sums);
  const float n = static_cast<float>(a.width), r = 1.0f / sqrtf(sums[0] / n + a.eps), by = sums[1] / n * r * r;
  columns.put([&](float x, float h) { return r * __fmaf_rn(-by, x, h); });
}

// With u = x - mean and r of u as above: dx = r (h - mean h - u r^2 mean(h u)). Row t has row t mod turns of the
// weight.
template <class Columns>
__device__ __forceinline__ void layernorm_backward(const NormGradient& a) {
  const NormRow row(a);
  if (row.at >= a.rows) return;
  const Columns columns{row};
  const float n = static_cast<float>(a.width);
  float level[1] = {};
  columns.each([&](int, float x, float) { level[0] += x; });
  row.sum(level);
  const float mean = level[0] / n;
  float sums[3] = {};
  columns.each([&](int, float x, float h) {
    const float u = x - mean;
    sums[0] = __fmaf_rn(u, u, sums[0]);
    sums[1] += h;
    sums[2] = __fmaf_rn(h, u, sums[2]);
  });
  row.sum(sums);
  const float r = 1.0f / sqrtf(sums[0] / n + a.eps), of_h = sums[1] / n, by = sums[2] / n * r * r;
  columns.put([&](float x, float h) { return r * __fmaf_rn(-by, x - mean, h - of_h); });
}

}  // namespace lpq
