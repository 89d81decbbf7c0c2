// A device that the host plays: every thread of a cluster's blocks is a coroutine, which gives way where threads wait for each
// other or work together (shuffles, matrix products, barriers). Which goes on next is drawn by lot, so that what lacks a barrier
// shows sooner or later. Stands in for mma.cuh and stream_ptx.cuh.
#pragma once
#include <cstring>
#include <functional>

#include "simt_types.h"

namespace simt {

struct Lane {
  uint32_t words[12];
};
// Gives this thread's words to its warp, and returns when all 32 have: everybody's words.
const Lane* gather(const Lane& own);
unsigned char* shared_memory(uint32_t address);  // of any block of the cluster
uint32_t shared_address(const void* p);
void warp_barrier();
enum class Cluster { arrive, wait, both };
void cluster(Cluster what);
unsigned char* own_shared();
void give_way();  // to others; for what waits by asking again

// Runs `body` as all threads of `blocks` blocks, `cluster` in a row at once; `bytes` of shared memory each, full of NaN before.
// Throws std::runtime_error where a block writes beyond its shared memory or all threads wait.
void run(int blocks, int threads, int cluster, int bytes, uint64_t seed, const std::function<void()>& body);

}  // namespace simt

template <class T>
T __shfl_sync(uint32_t, T v, int from) {
  simt::Lane own{};
  own.words[0] = std::bit_cast<uint32_t>(v);
  return std::bit_cast<T>(simt::gather(own)[from & 31].words[0]);
}
template <class T>
T __shfl_xor_sync(uint32_t all, T v, int mask) {
  return __shfl_sync(all, v, static_cast<int>(threadIdx.x & 31) ^ mask);
}
inline void __syncwarp() { simt::warp_barrier(); }

namespace lpq::cuda {

inline unsigned char* dynamic_shared() { return simt::own_shared(); }
inline uint32_t shared_address(const void* p) { return simt::shared_address(p); }
inline uint4 load_shared16(uint32_t address) {
  uint4 v;
  std::memcpy(&v, simt::shared_memory(address), 16);
  return v;
}
inline uint64_t evict_first() { return 0; }
inline void prefetch(const void*, int) {}
inline void wait_for_operation_before() {}
inline void load_once(uint32_t* to, const void* from, uint64_t, bool wanted) {
  if (wanted) std::memcpy(to, from, 16);
}
inline void load_pair(uint2& to, const void* from, bool wanted) {
  if (wanted) std::memcpy(&to, from, 8);
}
inline uint32_t load_word(const void* from) {
  uint32_t v;
  std::memcpy(&v, from, 4);
  return v;
}
inline void cluster_arrive() { simt::cluster(simt::Cluster::arrive); }
inline void cluster_wait() { simt::cluster(simt::Cluster::wait); }
inline void cluster_barrier() { simt::cluster(simt::Cluster::both); }
inline uint32_t shared_of_block(uint32_t address, int rank) { return (address & 0xfffffu) | static_cast<uint32_t>(rank) << 20; }
inline void store_cluster(uint32_t address, float4 f) { std::memcpy(simt::shared_memory(address), &f, 16); }
inline unsigned count_up(unsigned* counter) { return (*counter)++; }

// mma.m16n8k16: PTX's registers of A, B and C; the sum in double precision, rounded once.
template <bool BF>
void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  simt::Lane own{{a[0], a[1], a[2], a[3], b0, b1}};
  const simt::Lane* all = simt::gather(own);
  const int lane = static_cast<int>(threadIdx.x & 31), g = lane >> 2, t = lane & 3;
  const auto number = [](uint32_t word, int half) -> double {
    const uint16_t bits = static_cast<uint16_t>(word >> 16 * half);
    return BF ? lpq::bf16_to_f32(bits) : lpq::f16_to_f32(bits);
  };
  for (int i = 0; i < 4; ++i) {
    const int row = g + 8 * (i >> 1), column = 2 * t + (i & 1);
    double sum = c[i];
    for (int k = 0; k < 16; ++k) {
      const simt::Lane &from_a = all[4 * (row & 7) + k % 8 / 2], &from_b = all[4 * column + k % 8 / 2];
      sum += number(from_a.words[(row >> 3) + 2 * (k >> 3)], k & 1) * number(from_b.words[4 + (k >> 3)], k & 1);
    }
    c[i] = static_cast<float>(sum);
  }
}

}  // namespace lpq::cuda
