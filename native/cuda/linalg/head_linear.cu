// head_linear: y[t][h] = W_h x[t][h], sums in fp32, k upwards. A block of 64 threads takes 4 OWN tokens and 64 columns
// of one head; slabs of 64 terms come by cp.async, weights as they are stored:
//   (thread, p, i) -> token OWN (thread / 16) + p, column 4 (thread % 16) + i of a turned weight, whose rows are terms,
//                     or thread % 16 + 16 i of one whose rows are columns of y
// A weight is read once for sixteen tokens, so of few tokens its bytes are the time.
#include "cuda/linalg/head_linear.h"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/types.cuh"

namespace lpq::cuda {

template <class T>
struct HeadSlab {
  static constexpr int kPitch = head_pitch(sizeof(T)), kPitchOfX = head_pitch(4), kEach = 16 / sizeof(T);
  T weights[64][kPitch];
  float inputs[kHeadTokens][kPitchOfX];
};

template <class T>
struct alignas(4 * sizeof(T)) HeadFour {
  T at[4];
};

// What a block reads: of its head, from column n0 and token0 on.
template <class T>
struct HeadSource {
  const HeadLinearArgs& a;
  const T* weight;
  const float* x;
  int n0, tokens;  // tokens that there are

  // Terms k0 .. k0 + 64 of `count` tokens, zeros beyond.
  __device__ void fetch(HeadSlab<T>& to, int k0, int count) const {
    const int thread = static_cast<int>(threadIdx.x);
    // Rows and columns of the weight's slab that there are.
    const int rows = a.turned ? a.k - k0 : a.n - n0, columns = a.turned ? a.n - n0 : a.k - k0;
    const T* const slab = weight + (a.turned ? k0 * a.columns + n0 : n0 * a.columns + k0);
    if (a.wide_weight) {
      constexpr int kEach = HeadSlab<T>::kEach, kLine = 64 / kEach;
#pragma unroll
      for (int i = thread; i < 64 * kLine; i += kHeadThreads) {
        const int row = i / kLine, column = i % kLine * kEach,
                  bytes = row < rows ? max(0, min(kEach, columns - column)) * static_cast<int>(sizeof(T)) : 0;
        cp_async_16(shared_address(&to.weights[row][column]), bytes > 0 ? slab + row * a.columns + column : weight,
                    bytes);
      }
    } else {
      for (int i = thread; i < 64 * 64; i += kHeadThreads) {
        const int row = i / 64, column = i % 64;
        to.weights[row][column] = row < rows && column < columns ? slab[row * a.columns + column] : T{};
      }
    }
    const int terms = a.k - k0;
    if (a.wide_x) {
      for (int i = thread; i < count * 16; i += kHeadThreads) {
        const int t = i / 16, k = i % 16 * 4, bytes = t < tokens ? max(0, min(4, terms - k)) * 4 : 0;
        cp_async_16(shared_address(&to.inputs[t][k]), bytes > 0 ? x + t * a.x_row + k0 + k : x, bytes);
      }
    } else {
      for (int i = thread; i < count * 64; i += kHeadThreads) {
        const int t = i / 64, k = i % 64;
        const bool there = t < tokens && k < terms;
        cp_async_4(shared_address(&to.inputs[t][k]), there ? x + t * a.x_row + k0 + k : x, there ? 4 : 0);
      }
    }
  }
};

template <class T, int OWN>
__device__ __forceinline__ void head_slab(const HeadSlab<T>& slab, bool turned, int quad, int token,
                                          float (&sums)[OWN][4]) {
#pragma unroll 4
  for (int k = 0; k < kHeadSlab; k += 4) {
    HeadFour<float> x[OWN];
#pragma unroll
    for (int p = 0; p < OWN; ++p) x[p] = *reinterpret_cast<const HeadFour<float>*>(&slab.inputs[token + p][k]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      // Of a turned weight term k + j of four columns, else four terms of column j.
      const auto w = *reinterpret_cast<const HeadFour<T>*>(turned ? &slab.weights[k + j][4 * quad]
                                                                  : &slab.weights[quad + 16 * j][k]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float v = widen(w.at[i]);
#pragma unroll
        for (int p = 0; p < OWN; ++p)
          if (turned) sums[p][i] = fmaf(x[p].at[j], v, sums[p][i]);
          else sums[p][j] = fmaf(x[p].at[i], v, sums[p][j]);
      }
    }
  }
}

template <class T, int OWN>
__device__ __forceinline__ void head_linear(const HeadLinearArgs& a) {
  auto* const slabs = reinterpret_cast<HeadSlab<T>*>(dynamic_shared());
  const int column_tile = static_cast<int>(blockIdx.x) % a.column_tiles,
            rest = static_cast<int>(blockIdx.x) / a.column_tiles, head = rest % a.heads,
            token0 = rest / a.heads * 4 * OWN;
  const HeadSource<T> source{
      a, static_cast<const T*>(a.weight) + (static_cast<index_t>(head) * a.rows + a.first) * a.columns,
      a.x + static_cast<index_t>(head) * a.from_dim + a.from + token0 * a.x_row, column_tile * kHeadColumns,
      a.tokens - token0};
  const int quad = static_cast<int>(threadIdx.x) % 16, token = static_cast<int>(threadIdx.x) / 16 * OWN;
  float sums[OWN][4] = {};
  const auto fetch = [&](int slab) {
    if (slab * kHeadSlab < a.k) source.fetch(slabs[slab % kHeadStages], slab * kHeadSlab, 4 * OWN);
    cp_async_commit();
  };
  for (int slab = 0; slab < kHeadStages - 1; ++slab) fetch(slab);
  for (int slab = 0; slab * kHeadSlab < a.k; ++slab) {
    cp_async_wait<kHeadStages - 2>();
    __syncthreads();  // the slab is there, and nobody reads the one before it any more
    fetch(slab + kHeadStages - 1);
    const HeadSlab<T>& now = slabs[slab % kHeadStages];
    if (a.turned) head_slab<T, OWN>(now, true, quad, token, sums);
    else head_slab<T, OWN>(now, false, quad, token, sums);
  }
#pragma unroll
  for (int p = 0; p < OWN; ++p) {
    const int t = token0 + token + p;
    if (t >= a.tokens) return;
    const index_t to = t * a.y_row + static_cast<index_t>(head) * a.to_dim + a.to;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int n = source.n0 + (a.turned ? 4 * quad + i : quad + 16 * i);
      if (n >= a.n) continue;
      if (a.store == 0) static_cast<float*>(a.y)[to + n] = sums[p][i];
      else if (a.store == 1) static_cast<f16*>(a.y)[to + n] = narrow<f16>(sums[p][i]);
      else static_cast<bf16*>(a.y)[to + n] = narrow<bf16>(sums[p][i]);
    }
  }
}

}  // namespace lpq::cuda

#define LPQ_HEAD_LINEAR(type, name)                                                 \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kHeadThreads)             \
      lpq_head_linear_##name(const __grid_constant__ lpq::cuda::HeadLinearArgs a) { \
    if (a.own == 1) lpq::cuda::head_linear<type, 1>(a);                             \
    else lpq::cuda::head_linear<type, 4>(a);                                        \
  }
LPQ_EACH_TYPE(LPQ_HEAD_LINEAR)
