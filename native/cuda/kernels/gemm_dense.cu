// y = x W' of f16 by mma.m16n8k16 with the tiles of gemm_large.cuh: what bench_kernels measures dequantization against, and no operation.
// Both operands go through the ring; 8x1: a warp has 32 columns by all tokens, as gemm_large's; 4x2: 64 columns by half of the tokens.
// Whole tiles only: N a multiple of 256, M and K of 128.
#include "cuda/kernels/gemm_large.cuh"

namespace lpq::cuda {

template <int Across>
__device__ __forceinline__ void gemm_dense(const GemmPackedArgs& g, const LargeArgs& a) {
  extern __shared__ __align__(1024) unsigned char shared[];
  constexpr int kRows = 16 / Across, kTokens = 16 * Across / 8, kStage = 128 * (256 + 128);  // 16s of columns, eights of tokens, of a warp
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0), wn = warp % Across, wt = warp / Across;
  const uint32_t ring = shared_address(shared), ring_end = ring + kLargeStages * kStage, shelf = ring_end + warp * kLargeShelf;
  const int steps = 2 * g.steps, tiles = g.strips * a.token_tiles, stride = gridDim.x;
  int tile = blockIdx.x, step = 0;
  const int count = (tiles - tile + stride - 1) / stride * steps;
  const uint16_t* w = reinterpret_cast<const uint16_t*>(g.weights);
  int load_tile = tile, load_step = 0, load_strip, load_tokens;
  place_tile(g, a, load_tile, load_strip, load_tokens);
  uint32_t load_stage = ring;
  const int chunk = threadIdx.x & 7, row = threadIdx.x >> 3;
  const auto load = [&](bool any) {
    if (any) {
      const int column = load_step * 64 + chunk * 8;
      const uint32_t to = load_stage + row * 128 + ((chunk ^ (row & 7)) << 4);
      const uint16_t* x_from = g.x + static_cast<long long>(load_tokens * 128 + row) * g.k + column;
      const uint16_t* w_from = w + static_cast<long long>(load_strip * 256 + row) * g.k + column;
#pragma unroll
      for (int i = 0; i < 4; ++i) copy16_async(to + i * 4096, x_from + static_cast<long long>(32 * i) * g.k, 16);
#pragma unroll
      for (int i = 0; i < 8; ++i) copy16_async(to + 16384 + i * 4096, w_from + static_cast<long long>(32 * i) * g.k, 16);
      if (++load_step == steps) {
        load_step = 0, load_tile += stride;
        if (load_tile < tiles) place_tile(g, a, load_tile, load_strip, load_tokens);
      }
      load_stage += kStage;
      if (load_stage == ring_end) load_stage = ring;
    }
    commit_copies();
  };
  for (int s = 0; s < kLargeStages - 1; ++s) load(s < count);
  float sum[kRows][kTokens][4];
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int t = 0; t < kTokens; ++t) sum[r][t][0] = sum[r][t][1] = sum[r][t][2] = sum[r][t][3] = 0;
  const int row7 = lane & 7, matrix = lane >> 3;
  const uint32_t x_row = (wt * kTokens * 8 + row7 + 8 * (matrix >> 1)) * 128, w_row = 16384 + (wn * kRows * 16 + row7 + 8 * (matrix & 1)) * 128;
  uint32_t stage = ring;
  int strip, tokens;
  place_tile(g, a, tile, strip, tokens);
  for (int at = 0; at < count; ++at) {
    wait_copies<kLargeStages - 2>();
    __syncthreads();
    load(at + kLargeStages - 1 < count);
#pragma unroll
    for (int ks = 0; ks < 4; ++ks) {
      uint32_t wr[kRows][4];
#pragma unroll
      for (int r = 0; r < kRows; ++r) load_matrices(wr[r], stage + w_row + r * 2048 + (((ks * 2 + (matrix >> 1)) ^ row7) << 4));
#pragma unroll
      for (int t = 0; t < kTokens; t += 2) {
        uint32_t x[4];
        load_matrices(x, stage + x_row + t * 1024 + (((ks * 2 + (matrix & 1)) ^ row7) << 4));
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          multiply<false>(sum[r][t], wr[r], x[0], x[1]);
          multiply<false>(sum[r][t + 1], wr[r], x[2], x[3]);
        }
      }
    }
    stage += kStage;
    if (stage == ring_end) stage = ring;
    if (++step == steps) {
#pragma unroll
      for (int r = 0; r < kRows; r += 2) {
        float half[2][kTokens][4];
#pragma unroll
        for (int t = 0; t < kTokens; ++t)
#pragma unroll
          for (int i = 0; i < 4; ++i) half[0][t][i] = sum[r][t][i], half[1][t][i] = sum[r + 1][t][i], sum[r][t][i] = sum[r + 1][t][i] = 0;
        store_tile<kTokens, false>(g, true, half, strip * 256 + (wn * kRows + r) * 16, tokens * 128 + wt * kTokens * 8, shelf, lane);
      }
      step = 0, tile += stride;
      if (tile < tiles) place_tile(g, a, tile, strip, tokens);
    }
  }
}

}  // namespace lpq::cuda

extern "C" __global__ void __launch_bounds__(256, 1) lpq_dense_f16_8x1(const __grid_constant__ lpq::cuda::GemmPackedArgs g, const __grid_constant__ lpq::cuda::LargeArgs a) {
  lpq::cuda::gemm_dense<8>(g, a);
}
extern "C" __global__ void __launch_bounds__(256, 1) lpq_dense_f16_4x2(const __grid_constant__ lpq::cuda::GemmPackedArgs g, const __grid_constant__ lpq::cuda::LargeArgs a) {
  lpq::cuda::gemm_dense<4>(g, a);
}
