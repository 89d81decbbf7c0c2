// Attention over the newest tokens and what older ones were compressed to (ops/compressed.h).
#include "cuda/attention/listed.cuh"
#include "cuda/recurrent/places.cuh"

using namespace lpq;
using namespace lpq::cuda;

namespace {

struct Compressed {
  const float *x, *gate;
  const void* bias;
  float* y;
  int bias_type, rate, series, dim, width;
};

// x (gate: false) or gate of the token at this place of a sequence: among those of the call, or in the slot.
__device__ __forceinline__ float element(const Compressed& a, const Past& past, const Place& place, int token, int c,
                                         bool gate) {
  if (token >= place.earlier)
    return (gate ? a.gate : a.x)[static_cast<index_t>(place.first + token - place.earlier) * a.width + c];
  const int kept = a.series * a.rate;
  return past.state[((static_cast<index_t>(place.slot) * kept + token % kept) * 2 + gate) * a.width + c];
}

}  // namespace

// A thread an entry and channel.
extern "C" __global__ void lpq_compress(Compressed a, Past past, const Place* places, int entries) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x, e = blockIdx.y;
  if (c >= a.dim || e >= entries) return;
  int low = 0, high = past.sequences;  // the last sequence that begins with this entry or before it
  while (low + 1 < high) {
    const int middle = (low + high) / 2;
    if (places[middle].entry <= e) low = middle;
    else high = middle;
  }
  const Place place = places[low];
  const int run = place.before(a.rate) + e - place.entry;
  if (run >= place.after(a.rate)) return;
  const int before = a.series == 2 && run > 0 ? a.rate : 0, first = run * a.rate - before, count = a.rate + before;
  const auto column = [&](int j) { return a.series == 2 && j >= before ? a.dim + c : c; };
  const auto logit = [&](int j) {
    return element(a, past, place, first + j, column(j), true) +
           load_any(a.bias, a.bias_type, static_cast<index_t>((j - before + a.rate) % a.rate) * a.width + column(j));
  };
  float most = -INFINITY, sum = 0, made = 0;
  for (int j = 0; j < count; ++j) most = fmaxf(most, logit(j));
  for (int j = 0; j < count; ++j) {
    const float share = expf(logit(j) - most);
    sum += share;
    made = __fmaf_rn(share, element(a, past, place, first + j, column(j), false), made);
  }
  a.y[static_cast<index_t>(e) * a.dim + c] = made / sum;
}

// The newest tokens to their slots. grid: (sequences, any).
extern "C" __global__ void lpq_compress_state(Compressed a, Past past, const Place* places) {
  const Place place = places[blockIdx.x];
  if (place.slot < 0) return;
  const int kept = a.series * a.rate, skipped = max(0, place.count - kept);
  for (int i = skipped + blockIdx.y; i < place.count; i += gridDim.y) {
    const index_t from = static_cast<index_t>(place.first + i) * a.width,
                  to = (static_cast<index_t>(place.slot) * kept + (place.earlier + i) % kept) * 2 * a.width;
    for (int c = threadIdx.x; c < a.width; c += blockDim.x) {
      past.state[to + c] = a.x[from + c];
      past.state[to + a.width + c] = a.gate[from + c];
    }
  }
}

namespace {

struct Windowed {
  const float *q, *k, *entries;
  const void* sinks;
  const int* selected;  // null: all entries
  float* y;
  int heads, dim, window, rate, top, rows, room, sinks_type;  // rows, room: of a slot; 0 where nothing is kept
  float scale;
};

constexpr int kEntry = 1 << 30;

// A warp a token and head.
template <int DIMS>
__device__ void attend(const Windowed& a, const Past& past, const Place* places) {
  extern __shared__ float queries[];
  const int t = blockIdx.x, head = blockIdx.y * blockDim.y + threadIdx.y;
  if (head >= a.heads) return;
  const Place& place = place_of(places, past.sequences, t);
  const int behind = t - place.first;
  if (behind < 0 || behind >= place.count) return;
  float* const query = queries + threadIdx.y * a.dim;
  const index_t from = (static_cast<index_t>(t) * a.heads + head) * a.dim;
  for (int c = threadIdx.x; c < a.dim; c += 32) query[c] = a.q[from + c];
  __syncwarp();
  const int own = place.earlier + behind, first = max(0, own - a.window + 1), near = own - first + 1,
            full = a.rate > 0 ? (own + 1) / a.rate : 0;
  const int* list = a.selected ? a.selected + static_cast<index_t>(t) * a.top : nullptr;
  const float* const k = a.k + static_cast<index_t>(a.rows > 0 ? place.slot * a.rows : place.first) * a.dim;
  const float* const entries = a.entries + static_cast<index_t>(a.rows > 0 ? place.slot * a.room : place.entry) * a.dim;
  const auto row = [&](int n) {
    if (n < near) return first + n;
    const int e = list ? list[n - near] : n - near;
    if (e < -1 || e >= full) *past.fault = 1;
    return e < 0 || e >= full ? -1 : kEntry | e;
  };
  const auto at = [&](int r) {
    return r & kEntry ? entries + static_cast<index_t>(r ^ kEntry) * a.dim : k + static_cast<index_t>(r) * a.dim;
  };
  Listed<DIMS> sums(load_any(a.sinks, a.sinks_type, head));
  sums.attend(query, a.dim, a.dim, a.scale, near + (list ? a.top : full), row, at, at);
  sums.store(a.y + from, a.dim);
}

}  // namespace

#define LPQ_COMPRESSED_ATTENTION(dims)                                              \
  extern "C" __global__ void __launch_bounds__(128)                                 \
      lpq_compressed_attention_##dims(Windowed a, Past past, const Place* places) { \
    attend<dims>(a, past, places);                                                  \
  }
LPQ_COMPRESSED_ATTENTION(4)
LPQ_COMPRESSED_ATTENTION(8)
LPQ_COMPRESSED_ATTENTION(16)
