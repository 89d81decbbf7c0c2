// y = x W' of f16 by mma.m16n8k16 in the loop of large.cuh: what bench_kernels measures dequantization against,
// and no operation. Both operands go through the ring. 4x2: a warp has 64 columns by half of the tokens, as in
// gemm_large; 8x1: 32 columns by all tokens.
// Whole tiles only: N a multiple of 256, M and K of 128.
#include "cuda/gemm/kernels/large.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/shared_memory.cuh"

namespace lpq::cuda {

// Weights in f16, [n, k], for multiply_tiles.
template <int R>
struct DenseSource {
  template <int>
  static constexpr int kHalf = 8;  // copies of 64 k
  static constexpr int kProducts = 4, kStages = kDenseStages,
                       kStage = 128 * (256 + 128);  // activations, then weights; both as ldmatrix wants them
  const GemmPackedArgs& g;
  const int row, chunk;
  const uint32_t w_to, w_at;
  const uint16_t* w_from;
  uint32_t next[R][4];

  __device__ __forceinline__ DenseSource(const GemmPackedArgs& args, int n0, int lane)
      : g(args),
        row(threadIdx.x >> 3),
        chunk(threadIdx.x & 7),
        w_to(16384 + row * 128 + ((chunk ^ (row & 7)) << 4)),
        w_at(16384 + (n0 + lane % 16) * 128 + (((lane >> 4) ^ (lane & 7)) << 4)) {}
  __device__ __forceinline__ void aim(int strip, int step) {
    w_from = reinterpret_cast<const uint16_t*>(g.weights) + static_cast<long long>(strip * 256 + row) * g.k +
             step * kBlockK + chunk * 8;
  }
  template <int, int I>
  __device__ __forceinline__ void copy(bool any, uint32_t stage) {
    cp_async_16(stage + w_to + I * 4096, w_from + 32ll * I * g.k, any ? 16 : 0);
  }
  template <int>
  __device__ __forceinline__ void copied(bool, int) {
    w_from += 64;
  }
  __device__ __forceinline__ void prepare(int) {}
  template <int N>
  __device__ __forceinline__ void fetch(uint32_t stage, int) {
#pragma unroll
    for (int r = 0; r < R; ++r) ldmatrix_x4(next[r], ((stage + w_at) ^ (N % 4 << 5)) + r * 2048);
  }
  template <int, int P>
  __device__ __forceinline__ void make(uint32_t (&w)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = next[P][i];
  }
};

template <int Across>
__device__ __forceinline__ void gemm_dense(const GemmPackedArgs& g, const LargeArgs& a) {
  unsigned char* const shared = dynamic_shared();
  constexpr int R = 16 / Across, W = 2 * Across;
  using Source = DenseSource<R>;
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0), across = warp % Across;
  const uint32_t shelf = shared_address(shared) + Source::kStages * Source::kStage + warp * kLargeShelf;
  Source source(g, across * 16 * R, lane);
  multiply_tiles<R, W, 16, false>(g, a, source, shared, shelf, nullptr, across * 16 * R, warp / Across * 8 * W, lane,
                                  warp);
}

}  // namespace lpq::cuda

extern "C" __global__ void __launch_bounds__(256, 1)
    lpq_dense_f16_8x1(const __grid_constant__ lpq::cuda::GemmPackedArgs g,
                      const __grid_constant__ lpq::cuda::LargeArgs a) {
  lpq::cuda::gemm_dense<8>(g, a);
}
extern "C" __global__ void __launch_bounds__(256, 1)
    lpq_dense_f16_4x2(const __grid_constant__ lpq::cuda::GemmPackedArgs g,
                      const __grid_constant__ lpq::cuda::LargeArgs a) {
  lpq::cuda::gemm_dense<4>(g, a);
}
