// Weights in solving order, and what GPTAQ adds to them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace lpq::cuda {
namespace {

// A weight at any byte address.
__device__ __forceinline__ float load_weight(const uint8_t* raw, int dtype, int64_t at) {
  if (dtype == 0) {
    const uint8_t* p = raw + at * 4;
    return __uint_as_float(static_cast<uint32_t>(p[0]) | static_cast<uint32_t>(p[1]) << 8 |
                           static_cast<uint32_t>(p[2]) << 16 | static_cast<uint32_t>(p[3]) << 24);
  }
  const uint8_t* p = raw + at * 2;
  const uint32_t bits = static_cast<uint32_t>(p[0]) | static_cast<uint32_t>(p[1]) << 8;
  if (dtype == 2) return __uint_as_float(bits << 16);
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

}  // namespace

// t[n][j] = w[n][order[j]], 0 where that channel is dead; dtype 0 f32, 1 f16, 2 bf16. bad: how many weights are not
// finite and the flat index of the first. One block a row, its weights in
// shared memory as f32 when staged.
extern "C" __global__ void lpq_gptq_target(const uint8_t* w, int dtype, int aligned, const int32_t* order,
                                           const uint8_t* dead, int k, float* t, int staged, unsigned long long* bad,
                                           uint32_t* fault) {
  extern __shared__ float line[];
  const int64_t base = static_cast<int64_t>(blockIdx.x) * k;
  const auto load = [&](int64_t at) {
    if (!aligned) return load_weight(w, dtype, at);
    if (dtype == 0) return reinterpret_cast<const float*>(w)[at];
    if (dtype == 1) return __half2float(reinterpret_cast<const __half*>(w)[at]);
    return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(w)[at]);
  };
  if (staged) {
    for (int j = threadIdx.x; j < k; j += blockDim.x) line[j] = load(base + j);
    __syncthreads();
  }
  for (int j = threadIdx.x; j < k; j += blockDim.x)
    if (!isfinite(staged ? line[j] : load(base + j))) {
      atomicAdd(&bad[0], 1ull);
      atomicMin(&bad[1], static_cast<unsigned long long>(base + j));
    }
  for (int j = threadIdx.x; j < k; j += blockDim.x) {
    int32_t from = order[j];
    if (from < 0 || from >= k) {
      *fault = 1;
      from = 0;
    }
    t[base + j] = dead[from] ? 0.0f : staged ? line[from] : load(base + from);
  }
}

}  // namespace lpq::cuda
