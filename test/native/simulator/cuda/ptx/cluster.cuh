// native/cuda/ptx/cluster.cuh, simulated. The blocks that run at once are one cluster for its barrier; a kernel of
// pairs has many in it, and so has one that sets simt::cluster_blocks.
#pragma once
#include "asynchronous.h"

namespace lpq::cuda {

inline int cluster_ctarank() { return static_cast<int>(blockIdx.x & 1); }
inline void cluster_arrive_relaxed() { simt::cluster(simt::Cluster::arrive); }
inline void cluster_wait() { simt::cluster(simt::Cluster::wait); }
inline void cluster_sync() { simt::cluster(simt::Cluster::both); }
inline uint32_t mapa_shared(uint32_t address, int rank) {
  const uint32_t first = blockIdx.x / simt::cluster_blocks * simt::cluster_blocks;
  return (address & 0xfffffu) | (first + static_cast<uint32_t>(rank)) << 20;
}
// Of a kernel whose clusters are pairs of blocks.
inline uint32_t mapa_of_pair(uint32_t address, int rank) {
  return (address & 0xfffffu) | ((blockIdx.x & ~1u) + static_cast<uint32_t>(rank)) << 20;
}
inline void st_shared_cluster_v4(uint32_t address, float4 f) { std::memcpy(simt::shared_memory(address, 16), &f, 16); }
inline void st_async_v4(uint32_t address, uint32_t barrier, float4 f) {
  st_shared_cluster_v4(address, f);
  simt::ByteBarrier& counts = simt::barrier_at(barrier);
  counts.bytes -= sizeof f;
  counts.settle();
}

}  // namespace lpq::cuda
