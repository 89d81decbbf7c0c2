// native/cuda/ptx/mbarrier.cuh, simulated.
#pragma once
#include "asynchronous.h"
#include "cuda/ptx/cluster.cuh"

namespace lpq::cuda {

inline void mbarrier_init(uint32_t barrier, int arrivals) {
  simt::asynchronous.barriers[barrier] = {arrivals, arrivals, 0, 0};
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive(uint32_t barrier) { simt::arrive(barrier); }
inline void mbarrier_arrive_expect_tx(uint32_t barrier, int bytes) {
  simt::barrier_at(barrier).bytes += bytes;
  simt::arrive(barrier);
}
inline void mbarrier_arrive_cluster(uint32_t barrier, int rank) { simt::arrive(mapa_of_pair(barrier, rank)); }
inline void mbarrier_wait_parity(uint32_t barrier, int parity) {
  while (simt::barrier_at(barrier).phase == parity) simt::poll();
}

}  // namespace lpq::cuda
