// native/cuda/ptx/cluster.cuh, simulated. The blocks that run at once are one cluster; a kernel of pairs has many in
// it.
#pragma once
#include "simulator.h"

namespace lpq::cuda {

inline int cluster_ctarank() { return static_cast<int>(blockIdx.x & 1); }
inline void cluster_arrive_relaxed() { simt::cluster(simt::Cluster::arrive); }
inline void cluster_wait() { simt::cluster(simt::Cluster::wait); }
inline void cluster_sync() { simt::cluster(simt::Cluster::both); }
inline uint32_t mapa_shared(uint32_t address, int rank) {
  return (address & 0xfffffu) | static_cast<uint32_t>(rank) << 20;
}
// Of a kernel whose clusters are pairs of blocks.
inline uint32_t mapa_of_pair(uint32_t address, int rank) {
  return mapa_shared(address, static_cast<int>(blockIdx.x & ~1u) + rank);
}
inline void st_shared_cluster_v4(uint32_t address, float4 f) { std::memcpy(simt::shared_memory(address, 16), &f, 16); }

}  // namespace lpq::cuda
