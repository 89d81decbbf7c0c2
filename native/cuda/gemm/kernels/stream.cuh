// The same product as packed.cuh for few tokens (8 T <= 16), built to keep bytes in flight and to end soon after
// the last:
//  - a block takes a run of strips (32 rows) times a slice of K. It stages the slice's activations once, in the order
//    of operand B, with their sums; from then on its warps run by themselves, each through an equal run of packed
//    blocks, along K and then along N;
//  - packed blocks come ahead as 16-byte loads into registers, one or two a warp;
//  - mma.m16n8k16 multiplies: the format's words are its operand A. Where the zero point is constant, the first product
//    of a group starts from -zero' S, which lies in shared memory as the accumulators' registers, so that zero points
//    cost nothing; zero points of groups (and groups that K does not fill) take a loop of their own;
//  - powers of two (of the casts) are taken back once, where a strip ends;
//  - a strip that several warps of a block share is added up by the one that begins it, in the order of K; slices are
//    added up in their order either within a cluster, whose blocks divide the strips among them (through each other's
//    shared memory), or by the warp that delivers a strip last (through the workspace).
//
// All that is the device's own is called by name (cuda/ptx), so that the kernel runs on a simulated device, too
// (test/native/simulator).
//
//   words (lane, pair) -> (n, k): PackedChunk (packed_words.cuh); sums (lane, reg) -> (n, token): FragmentC
#pragma once
#include "cuda/gemm/kernels/stream/activations.cuh"
#include "cuda/gemm/kernels/stream/loads.cuh"
#include "cuda/gemm/kernels/stream/run.cuh"
#include "cuda/gemm/kernels/stream/sums.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/griddepcontrol.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// `Lean`: only for products of stream_simple() whose packed blocks have one group each. A kernel of its own, since what
// is small starts sooner and keeps its registers.
// `Split`: activations and outputs are f16, what is multiplied bf16 (BF), the activations as two parts one after the
// other: floats with more exponents than f16 has. Their second parts lie as T more tiles.
template <int B, int T, int W, bool Lean, bool BF, class Cast, bool Split = false>
__device__ __forceinline__ void gemm_stream(const GemmPackedArgs& g, const StreamArgs& a) {
  static_assert(!Split || (BF && !Cast::kSums));
  constexpr int TX = Split ? 2 * T : T;  // tiles of activations
  unsigned char* const shared = dynamic_shared();
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  using Work = StreamWork<B, T, TX, W, Lean>;
  using Loads = StreamLoads<B, Lean, Work>;
  using Sums = StreamSums<T, W, BF && !Split, ChunkCast<Cast>, Work>;
  const Work work(g, a);
  const int first = work.run_first(warp), last = work.run_first(warp + 1);

  Loads loads(g, work, first, last, lane);
  loads.load_first_unit();
  __syncwarp();
  const bool cluster = a.slices > 1 && !a.workspace;
  if (cluster) cluster_arrive_relaxed();
  // Weights, scales and zero points do not come from the operation before; all else may.
  if (a.overlap) griddepcontrol_wait_and_launch();

  const ChunkCast<Cast> cast(g.is_signed != 0, g.exponent);
  const StreamActivations<T, TX, W, BF, Cast, Split, Work> activations(g, work, shared, lane);
  activations.stage(warp);
  if (cluster) cluster_wait();
  __syncthreads();

  Sums sums{g,
            a,
            work,
            cast,
            reinterpret_cast<float4*>(shared + work.places.heads) + lane,
            reinterpret_cast<float4*>(shared + work.places.parts) + lane,
            31 - __clz(a.slices),
            lane,
            warp};
  clear_sums(sums.sum);
  using Products = StreamProducts<B, T, BF, Cast, Split, Work>;
  Products products{g, work, sums.sum, cast, activations.constant, shared, lane};
  StreamRun<B, Lean, Work, Loads, Products, Sums> run(g, a, work, loads, products, sums, first, last);
  run.multiply();

  __syncthreads();
  if (first < last && !run.began_inside && run.k != 0) {
    sums.take_over((run.strip + 1) * work.kbs);
    sums.deliver(run.strip);
  }
  if (a.workspace) return;
  if (cluster) {
    __syncwarp();
    cluster_sync();
  } else {
    __syncthreads();
  }
  sums.add_up_slices();
}

#endif

}  // namespace lpq::cuda

#if LPQ_HAS_WGMMA
// letter s: lean; x: all else. split: f16 activations in two parts of bf16.
#define LPQ_GEMM_STREAM(name, letter, tiles, bits, lean, bf, cast, split)                                           \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kStreamWarps * 32, 1) lpq_gemm_##name##_##letter##tiles(  \
      const __grid_constant__ lpq::cuda::GemmPackedArgs g, const __grid_constant__ lpq::cuda::StreamArgs a) {       \
    lpq::cuda::gemm_stream<bits, tiles, lpq::cuda::kStreamWarps, lean, bf, lpq::cuda::cast<bits, bf>, split>(g, a); \
  }
#else
#define LPQ_GEMM_STREAM(name, letter, tiles, bits, lean, bf, cast, split)
#endif
