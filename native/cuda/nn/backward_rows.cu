// What an output loses and its gradient, row by row (ops/backward.h), f32: a block a row. vec: in fours, where
// everything is aligned.
#include "cuda/nn/block_sum.cuh"

using namespace lpq;

namespace {

constexpr float kLeast = -3.402823466e38f;

// The greatest logit, the sum of exponentials less it, and of those times differences: made in one reading.
struct Softmax {
  float most = kLeast;
  double sum = 0, cross = 0;

  __device__ void make_room(float logit) {
    if (logit > most) {
      const double by = static_cast<double>(expf(most - logit));
      sum *= by, cross *= by, most = logit;
    }
  }
};

// Of a value of each thread; `room`: 32 numbers that nobody uses.
__device__ float block_max(float value, float* room) {
  value = warp_max(value);
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = value;
  __syncthreads();
  for (unsigned i = 0; i < blockDim.x / 32; ++i) value = fmaxf(value, room[i]);
  return value;
}

// A logit of -infinity has no weight, whatever it differs by.
__device__ __forceinline__ float weighed(float exponential, float apart) {
  return exponential > 0 ? exponential * apart : 0.0f;
}

}  // namespace

// dy = y - target, and its squares' sum.
extern "C" __global__ void __launch_bounds__(256)
    lpq_output_error(const float* y, const float* target, float* dy, double* sums, int width, int vec) {
  const index_t first = static_cast<index_t>(blockIdx.x) * width;
  double sum = 0;
  const auto square = [](float d) { return static_cast<double>(d) * static_cast<double>(d); };
  if (vec)
#pragma unroll 4
    for (int c = 4 * threadIdx.x; c < width; c += 4 * blockDim.x) {
      const float4 a = load4(y + first + c), b = load4(target + first + c);
      const float4 d = make_float4(a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w);
      store4(dy + first + c, d);
      sum += (square(d.x) + square(d.y)) + (square(d.z) + square(d.w));
    }
  else
    for (int c = threadIdx.x; c < width; c += blockDim.x) {
      const float d = y[first + c] - target[first + c];
      dy[first + c] = d;
      sum += square(d);
    }
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// KL(p || q) of a row, p = softmax(target), q = softmax(logits), and factor (q - p). With b of target and a of logits
// it is sum p (b - a) + lse a - lse b. Differences are less that of the first column, since a shift of all logits
// changes nothing but rounding.
// The gradient goes backwards, as what was read last may still be in cache.
extern "C" __global__ void __launch_bounds__(1024)
    lpq_divergence(const float* logits, const float* target, float* dlogits, double* sums, int vocabulary, float factor,
                   int vec) {
  __shared__ float room[2][32];
  const index_t first = static_cast<index_t>(blockIdx.x) * vocabulary;
  const float *l = logits + first, *w = target + first;
  float* to = dlogits + first;
  float common = w[0] - l[0];
  if (!isfinite(common)) common = 0;
  Softmax q, p;
  if (vec)
    for (int i = 4 * threadIdx.x; i < vocabulary; i += 4 * blockDim.x) {
      const float4 a = load4(l + i), b = load4(w + i);
      q.make_room(fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)));
      p.make_room(fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w)));
      q.sum +=
          static_cast<double>((expf(a.x - q.most) + expf(a.y - q.most)) + (expf(a.z - q.most) + expf(a.w - q.most)));
      const float4 e = make_float4(expf(b.x - p.most), expf(b.y - p.most), expf(b.z - p.most), expf(b.w - p.most));
      p.sum += static_cast<double>((e.x + e.y) + (e.z + e.w));
      p.cross += static_cast<double>((weighed(e.x, b.x - a.x - common) + weighed(e.y, b.y - a.y - common)) +
                                     (weighed(e.z, b.z - a.z - common) + weighed(e.w, b.w - a.w - common)));
    }
  else
    for (int i = threadIdx.x; i < vocabulary; i += blockDim.x) {
      const float a = l[i], b = w[i];
      q.make_room(a), p.make_room(b);
      const float e = expf(b - p.most);
      q.sum += static_cast<double>(expf(a - q.most)), p.sum += static_cast<double>(e);
      p.cross += static_cast<double>(weighed(e, b - a - common));
    }
  const float most = block_max(q.most, room[0]), wanted_most = block_max(p.most, room[1]);
  q.make_room(most), p.make_room(wanted_most);
  const double all = block_sum(q.sum), wanted_all = block_sum(p.sum), cross = block_sum(p.cross);
  if (threadIdx.x == 0)
    sums[blockIdx.x] = cross / wanted_all + static_cast<double>(common) +
                       ((static_cast<double>(most) + log(all)) - (static_cast<double>(wanted_most) + log(wanted_all)));
  const float share = static_cast<float>(1 / all), wanted_share = static_cast<float>(1 / wanted_all);
  const auto made = [&](float a, float b) {
    return factor * (expf(a - most) * share - expf(b - wanted_most) * wanted_share);
  };
  if (vec) {
    const int last = (vocabulary / 4 - 1) / static_cast<int>(blockDim.x);
#pragma unroll 2
    for (int turn = last; turn >= 0; --turn) {
      const int i = 4 * (turn * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x));
      if (i >= vocabulary) continue;
      const float4 a = load4(l + i), b = load4(w + i);
      store4(to + i, make_float4(made(a.x, b.x), made(a.y, b.y), made(a.z, b.z), made(a.w, b.w)));
    }
  } else {
    for (int i = threadIdx.x; i < vocabulary; i += blockDim.x) to[i] = made(l[i], w[i]);
  }
}

// y[t][j] = x[t][order[j]], a block a row; `staged`: by way of shared memory.
#define LPQ_GATHER_COLUMNS(T, name)                                                                           \
  extern "C" __global__ void __launch_bounds__(256)                                                           \
      lpq_gather_columns_##name(const T* x, const int* order, T* y, int width, int staged, unsigned* fault) { \
    extern __shared__ float memory[];                                                                         \
    T* const row = reinterpret_cast<T*>(memory);                                                              \
    const index_t first = static_cast<index_t>(blockIdx.x) * width;                                           \
    const T* from = x + first;                                                                                \
    if (staged) {                                                                                             \
      for (int c = threadIdx.x; c < width; c += blockDim.x) row[c] = from[c];                                 \
      __syncthreads();                                                                                        \
    }                                                                                                         \
    for (int c = threadIdx.x; c < width; c += blockDim.x) {                                                   \
      const int column = order[c];                                                                            \
      if (column < 0 || column >= width) *fault = 1;                                                          \
      else y[first + c] = staged ? row[column] : from[column];                                                \
    }                                                                                                         \
  }
LPQ_GATHER_COLUMNS(float, f32)
LPQ_GATHER_COLUMNS(uint16_t, b16)
