// Mixture-of-experts routing: choice of experts, grouping of many rows (expert_rows.cu: the rest). Orders are those of
// the CPU.
#include "cuda/types.cuh"

using namespace lpq;

// How experts are chosen: the fields of Choice in cpu/nn/routing.cpp. bias: null, or of a type as load_any() reads it.
struct Choice {
  int experts, k, groups, top_groups, sigmoid, normalize, top_two, bias_type;
  float scale;
  const void* bias;
};

namespace {

// Strikes out (-infinity) all groups but the best. A warp; choice [experts] and scores [groups] are its own.
__device__ void limit_groups(const Choice& how, float* choice, float* scores) {
  const int lane = threadIdx.x, size = how.experts / how.groups;
  for (int g = 0; g < how.groups; ++g) {
    float best = -INFINITY, second = -INFINITY;
    for (int e = g * size + lane; e < (g + 1) * size; e += 32) {
      const float c = choice[e];
      second = fmaxf(second, fminf(best, c));
      best = fmaxf(best, c);
    }
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) {
      const float other = __shfl_xor_sync(0xffffffffu, best, step),
                  other_second = __shfl_xor_sync(0xffffffffu, second, step);
      second = fmaxf(fminf(best, other), fmaxf(second, other_second));
      best = fmaxf(best, other);
    }
    if (lane == 0) scores[g] = how.top_two ? best + second : best;
  }
  __syncwarp();  // scores are there, and all lanes have read their groups' choices
  for (int g = 0; g < how.groups; ++g) {
    int above = 0;
    for (int other = 0; other < how.groups; ++other)
      above += scores[other] > scores[g] || (scores[other] == scores[g] && other < g);
    if (above >= how.top_groups)
      for (int e = g * size + lane; e < (g + 1) * size; e += 32) choice[e] = -INFINITY;
  }
}

// The largest of what is left, and its expert: the first of equal ones, `experts` where nothing is left. Every lane has
// them.
struct Largest {
  float value;
  int expert;
};
__device__ Largest largest_left(const float* left, int experts, int lane) {
  float best = -INFINITY;
  int at = experts;
  for (int e = lane; e < experts; e += 32)
    if (left[e] > best) {
      best = left[e];
      at = e;
    }
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) {
    const float other = __shfl_xor_sync(0xffffffffu, best, step);
    const int other_at = __shfl_xor_sync(0xffffffffu, at, step);
    if (other > best || (other == best && other_at < at)) {
      best = other;
      at = other_at;
    }
  }
  return {best, at};
}

}  // namespace

// One warp a token, with experts + groups floats of shared memory.
extern "C" __global__ void lpq_route_top_k(const float* logits, int* indices, float* weights, index_t tokens,
                                           Choice how, unsigned* fault) {
  extern __shared__ float memory[];
  const index_t t = static_cast<index_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (t >= tokens) return;
  const int lane = threadIdx.x, experts = how.experts, k = how.k;
  float* left = memory + threadIdx.y * (experts + how.groups);  // what experts not chosen yet are chosen by
  const float* row = logits + t * experts;
  float most = -INFINITY;
  bool bad = false;
  for (int e = lane; e < experts; e += 32) {
    const float v = row[e];
    most = fmaxf(most, v);
    bad |= !isfinite(v) || (how.bias && !isfinite(load_any(how.bias, how.bias_type, e)));
  }
  if (__any_sync(0xffffffffu, bad)) {
    if (lane == 0) *fault = 1;
    for (int j = lane; j < k; j += 32) {  // defined, so that what follows stays inside its tensors
      indices[t * k + j] = j;
      weights[t * k + j] = 0;
    }
    return;
  }
  most = warp_max(most);
  float sum = 0;
  if (!how.sigmoid) {
    for (int e = lane; e < experts; e += 32) sum += expf(row[e] - most);
    sum = warp_sum(sum);
  }
  auto share = [&](int e) { return how.sigmoid ? 1.0f / (1.0f + expf(-row[e])) : expf(row[e] - most) / sum; };
  // Shares keep the order of logits but may round two of them to one: without a bias the logits themselves decide.
  const bool by_logits = !how.sigmoid && !how.bias && !how.top_two;
  for (int e = lane; e < experts; e += 32)
    left[e] = by_logits ? row[e] : how.bias ? share(e) + load_any(how.bias, how.bias_type, e) : share(e);
  __syncwarp();
  if (how.groups > 1) limit_groups(how, left, left + experts);
  __syncwarp();
  float chosen = 0;
  for (int j = 0; j < k; ++j) {
    const auto [best, at] = largest_left(left, experts, lane);
    __syncwarp();  // all lanes have read what is left
    if (lane == 0) {
      left[at] = -INFINITY;
      indices[t * k + j] = at;
      weights[t * k + j] = share(at);
    }
    __syncwarp();
    chosen += weights[t * k + j];
  }
  const float total = !how.normalize ? 1.0f : how.sigmoid ? chosen + 1e-20f : chosen;
  __syncwarp();  // all lanes have read the weights
  for (int j = lane; j < k; j += 32) {
    float weight = weights[t * k + j];
    if (how.normalize) weight /= total;
    weights[t * k + j] = weight * how.scale;
  }
}

// counts[e]: rows of expert e; one block an expert.
extern "C" __global__ void lpq_count_experts(const int* indices, int count, int* counts, int experts, unsigned* fault) {
  __shared__ int parts[32];
  int mine = 0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int e = indices[i];
    mine += e == static_cast<int>(blockIdx.x);
    if (e < 0 || e >= experts) *fault = 1;
  }
  mine = warp_sum(mine);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (unsigned i = 1; i < blockDim.x / 32; ++i) mine += parts[i];
  counts[blockIdx.x] = mine;
}

// Rows of expert blockIdx.x in ascending order. blockDim.x threads look at as many indices at a time.
extern "C" __global__ void lpq_group_rows(const int* indices, int count, const int* offsets, int* rows) {
  __shared__ int before_warp[33];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  int next = offsets[blockIdx.x];
  for (int base = 0; base < count; base += blockDim.x) {
    const int i = base + threadIdx.x;
    const bool mine = i < count && indices[i] == static_cast<int>(blockIdx.x);
    const unsigned ballot = __ballot_sync(0xffffffffu, mine);
    if (lane == 0) before_warp[warp + 1] = __popc(ballot);
    __syncthreads();
    if (threadIdx.x == 0) {
      before_warp[0] = 0;
      for (int w = 0; w < warps; ++w) before_warp[w + 1] += before_warp[w];
    }
    __syncthreads();
    if (mine) rows[next + before_warp[warp] + __popc(ballot & ((1u << lane) - 1))] = i;
    next += before_warp[warps];
    __syncthreads();
  }
}

// SparseMixer (ops/routing.h): one warp a token, with `experts` floats of shared memory.
extern "C" __global__ void lpq_route_mixer(const float* logits, int* indices, float* weights, index_t tokens,
                                           int experts, int k, float jitter, float scale, unsigned* fault) {
  extern __shared__ float memory[];
  const index_t t = static_cast<index_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (t >= tokens) return;
  const int lane = threadIdx.x;
  float* left = memory + threadIdx.y * experts;
  const float* row = logits + t * experts;
  bool bad = false;
  for (int e = lane; e < experts; e += 32) {
    left[e] = row[e];
    bad |= !isfinite(row[e]);
  }
  if (__any_sync(0xffffffffu, bad)) {
    if (lane == 0) *fault = 1;
    for (int j = lane; j < k; j += 32) {  // defined, so that what follows stays inside its tensors
      indices[t * k + j] = j;
      weights[t * k + j] = 0;
    }
    return;
  }
  for (int j = 0; j < k; ++j) {
    const auto [most, at] = largest_left(left, experts, lane);
    float sum = 0;
    for (int e = lane; e < experts; e += 32)
      if (!((most - left[e]) / fmaxf(fabsf(row[e]), most) > 2 * jitter)) sum += expf(left[e] - most);
    sum = warp_sum(sum);
    __syncwarp();  // all lanes have read what is left
    if (lane == 0) {
      left[at] = -INFINITY;
      indices[t * k + j] = at;
      weights[t * k + j] = scale / sum;
    }
    __syncwarp();
  }
}
