// Rows of tokens sorted by expert: grouped, gathered, and added up again. Orders are those of the CPU. Up to 1024
// routed rows, one block sees all of them: a decode step takes one launch to group and one to add up.
#include "cuda/ptx/griddepcontrol.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/types.cuh"
#include "cuda/warp_scan.cuh"

using namespace lpq;

namespace {

__device__ __forceinline__ int* shared_ints() { return reinterpret_cast<int*>(cuda::dynamic_shared()); }

// counts[e] -> offsets[e], the sum of those before, and the sum of all behind them. A warp; `each(e, sum)` too.
template <class Each>
__device__ __forceinline__ void offsets_of(const int* counts, int* offsets, int experts, int lane, const Each& each) {
  const cuda::LaneRun run(experts, lane);
  int own = 0;
  for (int e = run.from; e < run.to; ++e) own += counts[e];
  int sum = cuda::warp_before(own, lane);
  for (int e = run.from; e < run.to; ++e) {
    const int count = counts[e];
    offsets[e] = sum;
    each(e, sum);
    sum += count;
  }
  if (lane == 31) offsets[experts] = sum;
}

// Places of a token's rows in ascending order, by one thread.
__device__ __forceinline__ void sort_places(const int* place, int* order, int divide) {
  for (int j = 0; j < divide; ++j) {
    int i = j;
    for (; i > 0 && place[order[i - 1]] > place[j]; --i) order[i] = order[i - 1];
    order[i] = j;
  }
}

// y[c] += sum over j of weights[j] x[place[j]][c] in this order of j, of the columns that `part` of `parts` takes.
template <class T>
__device__ __forceinline__ void add_rows(const T* x, const int* place, const int* order, const float* weights, float* y,
                                         int width, int divide, int part, int parts) {
  for (int c = part * blockDim.x + threadIdx.x; c < width; c += parts * blockDim.x) {
    float sum = y[c];
    for (int j = 0; j < divide; ++j) {
      const int m = place[order[j]];
      if (m >= 0) sum = __fmaf_rn(widen(x[static_cast<index_t>(m) * width + c]), weights[order[j]], sum);
    }
    y[c] = sum;
  }
}

// y[c] = the same sum without what y holds, of rows before `end` alone.
template <class T>
__device__ __forceinline__ void sum_rows(const T* x, const int* place, const int* order, const float* weights, T* y,
                                         int width, int divide, int end, int part, int parts) {
  for (int c = part * blockDim.x + threadIdx.x; c < width; c += parts * blockDim.x) {
    float sum = 0;
    for (int j = 0; j < divide; ++j) {
      const int m = place[order[j]];
      if (m >= 0 && m < end) sum = __fmaf_rn(widen(x[static_cast<index_t>(m) * width + c]), weights[order[j]], sum);
    }
    y[c] = narrow<T>(sum);
  }
}

// Of up to 1024 rows, place[j]: where row t * divide + j stands; -1: nowhere. By all threads.
__device__ __forceinline__ void find_places(const int* rows, int count, int* place, int divide, index_t t, int limit,
                                            unsigned* fault) {
  for (int j = threadIdx.x; j < divide; j += blockDim.x) place[j] = -1;
  __syncthreads();
  for (int m = threadIdx.x; m < count; m += blockDim.x) {
    const int row = rows[m];
    if (row < 0 || row >= limit) *fault = 1;
    else if (row / divide == t) place[row % divide] = m;
  }
  __syncthreads();
}

}  // namespace

// One warp.
extern "C" __global__ void lpq_expert_offsets(const int* counts, int* offsets, int experts) {
  offsets_of(counts, offsets, experts, threadIdx.x, [](int, int) {});
}

// Indices of up to 1024 routed rows, one a thread: offsets, and rows in ascending order inside an expert. Shared
// memory: [experts] rows of each, then where its next goes; [count] experts of the rows.
extern "C" __global__ void lpq_group_few(const int* indices, int count, int* offsets, int* rows, int experts,
                                         unsigned* fault) {
  cuda::griddepcontrol_wait_and_launch();
  int* const next = shared_ints();
  int* const expert_of = next + experts;
  const int i = threadIdx.x;
  for (int e = i; e < experts; e += blockDim.x) next[e] = 0;
  __syncthreads();
  int own = i < count ? indices[i] : -1;
  if (i < count && (own < 0 || own >= experts)) *fault = 1, own = -1;
  if (i < count) expert_of[i] = own;
  if (own >= 0) atomicAdd(reinterpret_cast<unsigned*>(next + own), 1u);
  __syncthreads();
  if (i < 32) offsets_of(next, offsets, experts, i, [&](int e, int first) { next[e] = first; });
  __syncthreads();
  if (own < 0) return;
  int place = next[own];
  for (int earlier = 0; earlier < i; ++earlier) place += expert_of[earlier] == own;
  rows[place] = i;
}

// y[m] = x[rows[m] / divide]; `parts` blocks a row.
#define LPQ_GATHER(type, name)                                                                                    \
  extern "C" __global__ void lpq_gather_##name(const type* x, const int* rows, type* y, int width, int divide,    \
                                               index_t limit, int parts, unsigned* fault) {                       \
    cuda::griddepcontrol_wait_and_launch();                                                                       \
    const index_t m = blockIdx.x / parts;                                                                         \
    const int row = rows[m], part = static_cast<int>(blockIdx.x % parts);                                         \
    if (row < 0 || row / divide >= limit) {                                                                       \
      if (threadIdx.x == 0) *fault = 1;                                                                           \
      return;                                                                                                     \
    }                                                                                                             \
    const type* from = x + static_cast<index_t>(row / divide) * width;                                            \
    for (int c = part * blockDim.x + threadIdx.x; c < width; c += parts * blockDim.x) y[m * width + c] = from[c]; \
  }
LPQ_EACH_TYPE(LPQ_GATHER)

// place[rows[m]] = m; every other entry was -1 before.
extern "C" __global__ void lpq_invert_rows(const int* rows, int count, int* place, int limit, unsigned* fault) {
  const int m = blockIdx.x * blockDim.x + threadIdx.x;
  if (m >= count) return;
  const int row = rows[m];
  if (row < 0 || row >= limit) *fault = 1;
  else place[row] = m;
}

// y[t] += sum over j of weights[t*divide + j] * x[place], in ascending order of place; `parts` blocks a row of y.
#define LPQ_SCATTER(type, name)                                                                                  \
  extern "C" __global__ void lpq_scatter_##name(const type* x, const int* place, const float* weights, float* y, \
                                                int width, int divide, int parts) {                              \
    cuda::griddepcontrol_wait_and_launch();                                                                      \
    int* const order = shared_ints();                                                                            \
    const index_t t = blockIdx.x / parts;                                                                        \
    if (threadIdx.x == 0) sort_places(place + t * divide, order, divide);                                        \
    __syncthreads();                                                                                             \
    add_rows(x, place + t * divide, order, weights + t * divide, y + t * width, width, divide,                   \
             static_cast<int>(blockIdx.x % parts), parts);                                                       \
  }
LPQ_EACH_TYPE(LPQ_SCATTER)

// The same of up to 1024 rows, whose places every block finds by itself. Shared memory: [divide] places, [divide]
// order, in whole fours (routing.cpp).
#define LPQ_SCATTER_FEW(type, name)                                                                                 \
  extern "C" __global__ void lpq_scatter_few_##name(const type* x, const int* rows, const float* weights, float* y, \
                                                    int count, int width, int divide, int limit, int parts,         \
                                                    unsigned* fault) {                                              \
    cuda::griddepcontrol_wait_and_launch();                                                                         \
    int* const place = shared_ints();                                                                               \
    int* const order = place + (divide + 3) / 4 * 4;                                                                \
    const index_t t = blockIdx.x / parts;                                                                           \
    find_places(rows, count, place, divide, t, limit, fault);                                                       \
    if (threadIdx.x == 0) sort_places(place, order, divide);                                                        \
    __syncthreads();                                                                                                \
    add_rows(x, place, order, weights + t * divide, y + t * width, width, divide,                                   \
             static_cast<int>(blockIdx.x % parts), parts);                                                          \
  }
LPQ_EACH_TYPE(LPQ_SCATTER_FEW)

// y[t] = sum over j of weights[t*divide + j] * x[place], in ascending order of place, of places before *end; y of the
// type of x. Otherwise as scatter.
#define LPQ_COMBINE(type, name)                                                                                        \
  extern "C" __global__ void lpq_combine_##name(const type* x, const int* place, const int* end, const float* weights, \
                                                type* y, int width, int divide, int parts) {                           \
    cuda::griddepcontrol_wait_and_launch();                                                                            \
    int* const order = shared_ints();                                                                                  \
    const index_t t = blockIdx.x / parts;                                                                              \
    if (threadIdx.x == 0) sort_places(place + t * divide, order, divide);                                              \
    __syncthreads();                                                                                                   \
    sum_rows(x, place + t * divide, order, weights + t * divide, y + t * width, width, divide, *end,                   \
             static_cast<int>(blockIdx.x % parts), parts);                                                             \
  }                                                                                                                    \
  extern "C" __global__ void lpq_combine_few_##name(const type* x, const int* rows, const int* end,                    \
                                                    const float* weights, type* y, int count, int width, int divide,   \
                                                    int limit, int parts, unsigned* fault) {                           \
    cuda::griddepcontrol_wait_and_launch();                                                                            \
    int* const place = shared_ints();                                                                                  \
    int* const order = place + (divide + 3) / 4 * 4;                                                                   \
    const index_t t = blockIdx.x / parts;                                                                              \
    find_places(rows, count, place, divide, t, limit, fault);                                                          \
    if (threadIdx.x == 0) sort_places(place, order, divide);                                                           \
    __syncthreads();                                                                                                   \
    sum_rows(x, place, order, weights + t * divide, y + t * width, width, divide, *end,                                \
             static_cast<int>(blockIdx.x % parts), parts);                                                             \
  }
LPQ_COMBINE(f16, f16)
LPQ_COMBINE(bf16, bf16)
