// Brings together what the splits of a decode kernel found.
#pragma once
#include "cuda/attention/kv_shape.h"
#ifdef LPQ_SIMT
#include LPQ_SIMT
#else
#include "cuda/attention/kv_ptx.cuh"
#endif

namespace lpq::cuda {

// One block a query head of a sequence, a thread a dim: y = the sums of all records that hold tokens; 0 where none does.
template <int DIMS>
__device__ __forceinline__ void kv_combine(const KvCombineArgs& a) {
  const int d = static_cast<int>(threadIdx.x), query = static_cast<int>(blockIdx.x) % a.heads, sequence = static_cast<int>(blockIdx.x) / a.heads;
  const int group = a.heads / a.kv_heads, head = query / group, own = query % group, column = own % kKvQueries;
  const float* records = a.partial + ((static_cast<long long>(sequence) * a.kv_heads + head) * a.query_tiles + own / kKvQueries) * a.splits * kKvRecord<DIMS>;
  float most = -INFINITY, total = 0, sum = 0;
  for (int r = 0; r < a.splits; ++r) most = fmaxf(most, records[static_cast<long long>(r) * kKvRecord<DIMS> + column]);
  for (int r = 0; r < a.splits; ++r) {
    const float* from = records + static_cast<long long>(r) * kKvRecord<DIMS>;
    const float share = from[column] == -INFINITY ? 0.0f : power_of_two(from[column] - most);
    total = fused(from[kKvQueries + column], share, total);
    sum = fused(from[2 * kKvQueries + column * DIMS + d], share, sum);
  }
  const float y = total > 0 ? quotient(sum, total) : 0.0f;
  const long long at = static_cast<long long>(blockIdx.x) * DIMS + d;
  if (a.wide) static_cast<float*>(a.y)[at] = y;
  else static_cast<unsigned short*>(a.y)[at] = half_bits(y);
}

#define LPQ_KV_COMBINE(dims)                                                                                                       \
  extern "C" __global__ void __launch_bounds__(dims) lpq_kv_combine_##dims(const __grid_constant__ lpq::cuda::KvCombineArgs a) { \
    lpq::cuda::kv_combine<dims>(a);                                                                                              \
  }

}  // namespace lpq::cuda
