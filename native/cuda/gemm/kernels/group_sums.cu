// Sums of activations over the groups of each packed block of K, for zero points that cannot be taken out of the
// weights exactly.
#include "cuda/gemm/epilogue.cuh"
#include "cuda/numbers.cuh"

// x [m, k] -> sums [k / 128][groups_per_block][pitch], 0 for tokens from m on. A warp takes 128 k of one token, a lane
// four.
// Blocks: eights of tokens, which may be more than 65535, by blocks of K.
template <bool BF>
__device__ void group_sums(const uint16_t* x, float* sums, int m, int k, int groups_per_block, int pitch) {
  const int lane = threadIdx.x & 31, token = static_cast<int>(blockIdx.x) * 8 + static_cast<int>(threadIdx.x >> 5),
            column = static_cast<int>(blockIdx.y) * 128 + lane * 4;
  float v[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (token < m && column + i < k) v[i] = lpq::cuda::to_float(x[static_cast<long long>(token) * k + column + i], BF);
  float sum = (v[0] + v[1]) + (v[2] + v[3]);
  const int lanes = 32 / groups_per_block;
  for (int distance = 1; distance < lanes; distance *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  if (lane % lanes == 0 && token < pitch)
    sums[(static_cast<long long>(blockIdx.y) * groups_per_block + lane / lanes) * pitch + token] = sum;
}

extern "C" __global__ void __launch_bounds__(256)
    lpq_group_sums_f16(const uint16_t* x, float* sums, int m, int k, int groups_per_block, int pitch) {
  group_sums<false>(x, sums, m, k, groups_per_block, pitch);
}
extern "C" __global__ void __launch_bounds__(256)
    lpq_group_sums_bf16(const uint16_t* x, float* sums, int m, int k, int groups_per_block, int pitch) {
  group_sums<true>(x, sums, m, k, groups_per_block, pitch);
}
