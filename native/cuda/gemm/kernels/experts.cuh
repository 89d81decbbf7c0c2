// The product of packed.cuh for rows of x that are sorted by expert, all experts in one launch: y[m] = x[m] W_eᵀ for
// offsets[e] <= m < offsets[e + 1]. Steps, sums and their order are those of packed.cuh, and so are the fragments:
//   weights (lane, pair) -> (n, k): PackedChunk (packed_words.cuh)
//   sums (lane, reg) -> (n = 16 nt + lane / 4 + 8 (reg / 2), token 8 t + 2 (lane % 4) + reg % 2) of sum[nt][t]
// The steps of all items (experts/items.cuh) are cut into even runs, one a block, so that every multiprocessor streams
// the same number of bytes however the tokens spread over the experts. Rows of a tile that its expert does not have are
// zeros, and are not stored.
#pragma once
#include "cuda/gemm/kernels/experts/sums.cuh"
#include "cuda/gemm/kernels/packed/producer.cuh"
#include "cuda/gemm/kernels/packed/products.cuh"

namespace lpq::cuda {

// XB, WB, Cast: as of gemm_packed().
template <int B, int T, bool XB, bool WB, class Cast>
__device__ __forceinline__ void gemm_experts(const GemmPackedArgs& g, const ExpertArgs& a) {
  unsigned char* const shared = dynamic_shared();
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  const int wn = warp % g.warps_n, wk = warp / g.warps_n;
  const PackedStage<B, T> place(g);
  unsigned char* const stages = shared + 1024 + expert_plan_bytes(a.experts);
  const uint32_t ring = shared_address(stages);
  // Sums of activations: [two steps][warps_k][4 groups][8 T tokens].
  float* const sums = reinterpret_cast<float*>(stages + g.stages * place.bytes);
  float4* const exchange = reinterpret_cast<float4*>(sums + g.warps_k * 64 * T);
  const auto sync = [] { __syncthreads(); };

  int* const plan = reinterpret_cast<int*>(shared);
  if (warp == 0) ExpertItems<T>::make(a, g.m, plan, lane);
  __syncthreads();
  const ExpertItems<T> items(plan, a.experts, g.strips);
  const ExpertRuns runs = items.runs(g.steps, a.sharing, static_cast<int>(gridDim.x));
  if (blockIdx.x >= runs.even.blocks) return;
  const int first = runs.first(blockIdx.x), last = runs.first(blockIdx.x + 1), count = last - first;

  const Cast cast(g.is_signed != 0, g.exponent);
  // What is loaded, which goes on from item to item.
  int next = first / g.steps;
  GemmPackedArgs own = g;
  PackedProducer<B, T> producer{own, place, ring, lane, warp, wn, wk, 0, first % g.steps};
  const auto aim = [&] {
    const ExpertItem at = items.at(next);
    own = product_of<B>(g, a, at);
    producer.strip = at.strip;
  };
  const auto load = [&](bool any) {
    producer.load(any);
    if (any && producer.step == 0 && ++next < items.count()) aim();
  };
  aim();
  const ExpertSums<B, T, XB> results{g, a, items, runs};
  float sum[2][T][4];
  clear_sums(sum);
  const SlabRows rows(lane);

  for (int s = 0; s < g.stages - 1; ++s) load(s < count);

  const int front = first / g.steps;
  int item = front, step = first % g.steps, stage = 0, strip = items.at(front).strip;
  bool began_inside = step != 0;
  if (Cast::kSums) {
    cp_async_wait(g.stages - 2);
    __syncthreads();
    sum_activations<T, XB>(g, rows, ring, sums, wn, wk, lane);
  }
  for (int at = 0; at < count; ++at) {
    cp_async_wait(g.stages - 3);
    __syncthreads();
    load(at + g.stages - 1 < count);
    if (Cast::kSums && at + 1 < count)
      sum_activations<T, XB>(g, rows, ring + (stage + 1 == g.stages ? 0 : stage + 1) * place.bytes,
                             sums + ((at + 1) & 1) * g.warps_k * 4 * 8 * T, wn, wk, lane);

    const int kb = step * g.warps_k + wk;
    if (strip * g.warps_n + wn < g.n_blocks && kb < g.k_blocks) {
      const uint32_t x_stage = ring + stage * place.bytes;
      multiply_block<B, T, XB, WB>(g, cast, rows, sum, x_stage + place.x_bytes + warp * place.slot_bytes,
                                   place.scale_bytes, x_stage + 2 * wk * PackedStage<B, T>::kSlab,
                                   sums + ((at & 1) * g.warps_k + wk) * 4 * 8 * T, kb, lane);
    }
    if (++stage == g.stages) stage = 0;

    const bool item_ends = ++step == g.steps;
    if (item_ends || at + 1 == count)
      results.end(sum, exchange, item, item == front ? 0 : 1, item_ends && !began_inside, wn, wk, lane, sync);
    if (item_ends) {
      step = 0, ++item, began_inside = false;
      if (at + 1 < count) strip = items.at(item).strip;
    }
  }
  results.finish(first, last, threadIdx.x, blockDim.x, sync);
}

}  // namespace lpq::cuda

// Blocks of up to 512 threads where 128 registers do.
#define LPQ_EXPERTS(name, tiles, threads, bits, xb, cast)                                                      \
  extern "C" __global__ void __launch_bounds__(threads, 1) lpq_experts_##name##_t##tiles(                      \
      const __grid_constant__ lpq::cuda::GemmPackedArgs g, const __grid_constant__ lpq::cuda::ExpertArgs a) {  \
    lpq::cuda::gemm_experts<bits, tiles, xb, LPQ_WEIGHTS_BF16, lpq::cuda::cast<bits, LPQ_WEIGHTS_BF16>>(g, a); \
  }
// Of what Hopper has kernels for: built for sm_90a alone, these would never run.
#if LPQ_PORTABLE_RUNS
#define LPQ_EXPERTS_PORTABLE LPQ_EXPERTS
#else
#define LPQ_EXPERTS_PORTABLE(name, tiles, threads, bits, xb, cast)
#endif
