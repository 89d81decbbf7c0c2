// What becomes of a warp's sums of an item of experts: as of a strip of one weight (epilogue.cuh), with the rows and
// the bias of the item. An item that blocks share has the counters of the first of them: of no other item is it the
// first.
#pragma once
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/kernels/experts/items.cuh"

namespace lpq::cuda {

template <int B, int T, bool XB>
struct ExpertSums {
  const GemmPackedArgs& g;
  const ExpertArgs& a;
  const ExpertItems<T>& items;
  const ExpertRuns& runs;

  __device__ __forceinline__ unsigned* counter_of(int item) const {
    return g.counters + 2 * runs.even.sharers(item).from;
  }

  // The arguments are those of end_tile().
  template <class Sync>
  __device__ __forceinline__ void end(float (&sum)[2][T][4], float4* exchange, int item, int part, bool alone, int wn,
                                      int wk, int lane, const Sync& sync) const {
    const ExpertItem at = items.at(item);
    const ExpertProduct own = product_of<B>(g, a, at);
    end_tile(g, sum, exchange, part, alone, alone ? nullptr : counter_of(item), wn, wk, lane, sync,
             [&](int v, float4 value) { store_vector<T, XB>(own, at.strip, wn, v, lane, value); });
  }
  template <class Sync>
  __device__ __forceinline__ void finish(int first, int last, int thread, int threads, const Sync& sync) const {
    finish_tiles<T>(
        g, runs.even, first / runs.scale, last / runs.scale, thread, threads, sync,
        [&](int item) { return counter_of(item); },
        [&](int item) {
          const ExpertItem at = items.at(item);
          const ExpertProduct own = product_of<B>(g, a, at);
          return [own, at](int tile, int v, int lane, float4 value) {
            store_vector<T, XB>(own, at.strip, tile, v, lane, value);
          };
        });
  }
};

}  // namespace lpq::cuda
