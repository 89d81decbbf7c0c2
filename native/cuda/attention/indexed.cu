// The indexer of sparse attention (ops/selected.h, IndexKeys): scores of keys, and the best runs of each token.
#include "cuda/recurrent/places.cuh"
#include "cuda/types.cuh"

using namespace lpq;
using namespace lpq::cuda;

namespace {

constexpr int kKeys = 128;  // of a block, one a thread

struct Index {
  const float *q, *k, *weights;                            // weights: null, or [T, heads]
  int heads, dim, choices, block, rate, top, local, rows;  // rows: of a slot; 0: keys are those of the call
};

// Numbers in the order of what they stand for; 0 is below all.
__device__ __forceinline__ unsigned sortable(float x) {
  const unsigned bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// How many keys token t sees, and where those of its sequence begin; 0 keys where there is no such token.
__device__ __forceinline__ int seen(const Index& a, const Past& past, const Place* places, int t, index_t& first) {
  const Place& place = place_of(places, past.sequences, t);
  const int behind = t - place.first;
  if (behind < 0 || behind >= place.count) return 0;
  first = a.rows > 0 ? static_cast<index_t>(place.slot) * a.rows : place.entry;
  return (place.earlier + behind + 1) / a.rate;
}

}  // namespace

// scores [tokens of the piece, choices, pitch] of runs, which are 0 before where runs have several keys. grid: (tiles
// of keys, tokens of the piece); shared: the token's queries.
extern "C" __global__ void __launch_bounds__(kKeys)
    lpq_index_scores(Index a, Past past, const Place* places, int begin, unsigned* scores, int pitch, unsigned* fault) {
  extern __shared__ float queries[];
  constexpr int kHeads = 8;  // at a time
  const int t = begin + blockIdx.y, key = blockIdx.x * kKeys + threadIdx.x;
  index_t first = 0;
  const int visible = seen(a, past, places, t, first);
  if (static_cast<int>(blockIdx.x) * kKeys >= visible || (visible + a.block - 1) / a.block <= a.top) return;
  for (int i = threadIdx.x; i < a.heads * a.dim; i += kKeys)
    queries[i] = a.q[static_cast<index_t>(t) * a.heads * a.dim + i];
  __syncthreads();
  if (key >= visible) return;
  const float* k = a.k + (first + key) * a.dim;
  unsigned* const to = scores + static_cast<index_t>(blockIdx.y) * a.choices * pitch;
  const auto tell = [&](int choice, float score) {
    if (isnan(score)) *fault = 1;
    unsigned* place = to + static_cast<index_t>(choice) * pitch + key / a.block;
    if (a.block == 1) *place = sortable(score);
    else atomicMax(place, sortable(score));  // the same in any order
  };
  float all = 0;
  for (int h = 0; h < a.heads; h += kHeads) {
    float dot[kHeads] = {};
    for (int c = 0; c < a.dim; ++c) {
      const float v = k[c];
#pragma unroll
      for (int i = 0; i < kHeads; ++i)
        if (h + i < a.heads) dot[i] = __fmaf_rn(queries[(h + i) * a.dim + c], v, dot[i]);
    }
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      if (h + i >= a.heads) break;
      if (a.weights) {
        // Not fmaxf, which lets NaN go.
        const float positive = dot[i] < 0 ? 0.0f : dot[i];
        all = __fmaf_rn(a.weights[static_cast<index_t>(t) * a.heads + h + i], positive, all);
      } else {
        tell(h + i, dot[i]);
      }
    }
  }
  if (a.weights) tell(0, all);
}

// The `top` best runs of a token and choice, rising, then -1: a radix search for the least of them, then all above it
// and as many of its equals, those in front. grid: (choices, tokens of the piece).
extern "C" __global__ void __launch_bounds__(256)
    lpq_index_select(Index a, Past past, const Place* places, int begin, const unsigned* scores, int pitch, int* y) {
  __shared__ int counts[256], before_warp[9], chosen, left;
  const int t = begin + blockIdx.y, choice = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  index_t unused = 0;
  const int runs = (seen(a, past, places, t, unused) + a.block - 1) / a.block;
  int* const to = y + (static_cast<index_t>(t) * a.choices + choice) * a.top;
  if (runs <= a.top) {
    for (int i = threadIdx.x; i < a.top; i += blockDim.x) to[i] = i < runs ? i : -1;
    return;
  }
  const unsigned* from = scores + (static_cast<index_t>(blockIdx.y) * a.choices + choice) * pitch;
  const auto score = [&](int i) { return i >= runs - a.local ? 0xffffffffu : from[i]; };
  unsigned least = 0;
  if (threadIdx.x == 0) left = a.top;
  for (int shift = 24; shift >= 0; shift -= 8) {
    counts[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < runs; i += blockDim.x) {
      const unsigned s = score(i);
      if (shift == 24 || s >> (shift + 8) == least >> (shift + 8)) atomicAdd(&counts[s >> shift & 255], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int digit = 255, want = left;
      while (counts[digit] < want) want -= counts[digit--];
      chosen = digit, left = want;
    }
    __syncthreads();
    least |= static_cast<unsigned>(chosen) << shift;
  }
  int next = 0, equals = left;  // of which as many are taken as are left to choose
  __syncthreads();
  for (int base = 0; base < runs; base += blockDim.x) {
    const int i = base + threadIdx.x;
    const unsigned s = i < runs ? score(i) : 0;
    // The two counts side by side: equals in the upper half.
    const unsigned same = __ballot_sync(0xffffffffu, i < runs && s == least),
                   above = __ballot_sync(0xffffffffu, i < runs && s > least), under = (1u << lane) - 1;
    if (lane == 0) before_warp[warp + 1] = __popc(same) << 16 | __popc(above);
    __syncthreads();
    if (threadIdx.x == 0) {
      before_warp[0] = 0;
      for (int w = 0; w < 8; ++w) before_warp[w + 1] += before_warp[w];
    }
    __syncthreads();
    const int same_before = (before_warp[warp] >> 16) + __popc(same & under),
              above_before = (before_warp[warp] & 0xffff) + __popc(above & under), taken = min(same_before, equals);
    if (i < runs && (s > least || (s == least && same_before < equals))) to[next + above_before + taken] = i;
    const int all_same = min(before_warp[8] >> 16, equals);
    next += (before_warp[8] & 0xffff) + all_same, equals -= all_same;
    __syncthreads();
  }
}
