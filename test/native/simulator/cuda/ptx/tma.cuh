// native/cuda/ptx/tma.cuh, simulated: boxes land late, in any order.
#pragma once
#include "asynchronous.h"
#include "cuda/ptx/cluster.cuh"

namespace lpq::cuda {

inline void prefetch_tensor_map(const void*) {}
inline void tma_load_3d(uint32_t to, const void* map, int c0, int c1, int c2, uint32_t barrier) {
  simt::send_box(to, map, c0, c1, c2, barrier);
}
inline void tma_load_3d_evict_first(uint32_t to, const void* map, int c0, int c1, int c2, uint32_t barrier) {
  simt::send_box(to, map, c0, c1, c2, barrier);
}
inline void tma_load_3d_multicast(uint32_t to, const void* map, int c0, int c1, int c2, uint32_t barrier) {
  for (int rank = 0; rank < 2; ++rank)
    simt::send_box(mapa_of_pair(to, rank), map, c0, c1, c2, mapa_of_pair(barrier, rank));
}
inline void fence_proxy_async_shared() {}
inline void fence_proxy_async() {}

}  // namespace lpq::cuda
