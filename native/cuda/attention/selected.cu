// Attention over keys that were chosen query by query (ops/selected.h): a warp a token and head.
#include "cuda/attention/listed.cuh"
#include "cuda/recurrent/places.cuh"

using namespace lpq;
using namespace lpq::cuda;

namespace {

struct Selected {
  const float* q;
  const void *k, *v;
  const int* selected;
  float* y;
  int heads, kv_heads, head_dim, value_dim, choices, top, block, rows;  // rows: of a slot; 0: keys are those of tokens
  float scale;
};

template <class T, int DIMS>
__device__ void attend(const Selected& a, const Past& past, const Place* places) {
  extern __shared__ float queries[];
  const int t = blockIdx.x, head = blockIdx.y * blockDim.y + threadIdx.y;
  if (head >= a.heads) return;
  const Place& place = place_of(places, past.sequences, t);
  const int behind = t - place.first;
  if (behind < 0 || behind >= place.count) return;
  float* const query = queries + threadIdx.y * a.head_dim;
  const index_t from = (static_cast<index_t>(t) * a.heads + head) * a.head_dim;
  for (int c = threadIdx.x; c < a.head_dim; c += 32) query[c] = a.q[from + c];
  __syncwarp();
  const int visible = place.earlier + behind + 1, runs = (visible + a.block - 1) / a.block,
            kv = head / (a.heads / a.kv_heads);
  const int* list = a.selected + (static_cast<index_t>(t) * a.choices + head / (a.heads / a.choices)) * a.top;
  const index_t first = a.rows > 0 ? static_cast<index_t>(place.slot) * a.rows : place.first;
  const auto row = [&](int n) {
    const int run = list[n / a.block], s = run * a.block + n % a.block;
    if (run < -1 || run >= runs) *past.fault = 1;
    return run < 0 || run >= runs || s >= visible ? -1 : s;
  };
  const T* const k = static_cast<const T*>(a.k) + first * a.kv_heads * a.head_dim + kv * a.head_dim;
  const T* const v = static_cast<const T*>(a.v) + first * a.kv_heads * a.value_dim + kv * a.value_dim;
  Listed<DIMS> sums(-INFINITY);
  sums.attend(
      query, a.head_dim, a.value_dim, a.scale, a.top * a.block, row,
      [&](int s) { return k + static_cast<index_t>(s) * a.kv_heads * a.head_dim; },
      [&](int s) { return v + static_cast<index_t>(s) * a.kv_heads * a.value_dim; });
  if (sums.sum == 0) *past.fault = 1;
  sums.store(a.y + (static_cast<index_t>(t) * a.heads + head) * a.value_dim, a.value_dim);
}

}  // namespace

#define LPQ_SELECTED(type, name, dims)                                                     \
  extern "C" __global__ void __launch_bounds__(128)                                        \
      lpq_selected_attention_##name##_##dims(Selected a, Past past, const Place* places) { \
    attend<type, dims>(a, past, places);                                                   \
  }
#define LPQ_SELECTED_TYPES(type, name) \
  LPQ_SELECTED(type, name, 4)          \
  LPQ_SELECTED(type, name, 8)          \
  LPQ_SELECTED(type, name, 16)
LPQ_EACH_TYPE(LPQ_SELECTED_TYPES)
