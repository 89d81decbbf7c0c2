// A device that the host plays, so that kernels' own sources run without one: cuda/ptx/*.cuh beside this stand in for
// the instructions of native/cuda/ptx. Every thread of a cluster's blocks is a coroutine, which gives way where threads
// wait for each other or work together (shuffles, matrix products, barriers). Which goes on next is drawn by lot, so
// that what lacks a barrier shows sooner or later. What a device leaves undefined fails or spoils the result:
//  - copies land late: those of cp.async when their thread waits for them, boxes of TMA in any order while somebody
//    waits. Until then their destination holds rubbish, so that whoever still reads it, or reads it too early, is found
//    out by wrong results;
//  - sums of wgmma are there only after a wait;
//  - misaligned addresses, those outside shared memory, and loads from outside `readable` throw;
//  - lanes of a warp at different instructions, and threads that all wait, throw.
// Sums of products are exact in double precision and rounded once an instruction, as near as a host gets to any order.
#pragma once
#include <functional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cuda_words.h"

namespace simt {

/** Shared memory of a block of sm_90. */
constexpr int kShared = 232448;

struct Lane {
  uint32_t words[12];
};
// Gives this thread's words to its warp, and returns when all 32 have done so at the same `instruction`: everybody's
// words.
const Lane* gather(const char* instruction, const Lane& own);
unsigned char* shared_memory(uint32_t address, uint32_t bytes);  // of any block of the cluster
uint32_t shared_address(const void* p);
inline uint32_t cluster_blocks = 1 << 12;  // what mapa counts from, of the blocks that run at once
enum class Cluster { arrive, wait, both };
void cluster(Cluster what);
unsigned char* own_shared();
unsigned own_thread();  // a number of its own in the cluster
void give_way();        // to others; for what waits by asking again

// Global memory that asynchronous copies and loads past L1 may read; nothing is checked while it is empty.
inline std::vector<std::pair<const unsigned char*, size_t>> readable;
inline void check_readable(const void* from, size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(from);
  if (reinterpret_cast<uintptr_t>(from) % bytes != 0) throw std::runtime_error("a load from a misaligned address");
  if (readable.empty()) return;
  for (const auto& [begin, size] : readable)
    if (at >= begin && at + bytes <= begin + size) return;
  throw std::runtime_error("a load from outside the tensors");
}

// Runs `body` as all threads of `blocks` blocks, `cluster` in a row at once; `bytes` of shared memory each, full of NaN
// before.
// Throws std::runtime_error where a thread does what a device leaves undefined, or all threads wait.
void run(int blocks, int threads, int cluster, int bytes, uint64_t seed, const std::function<void()>& body);

}  // namespace simt

template <class T>
T __shfl_sync(uint32_t, T v, int from) {
  return std::bit_cast<T>(simt::gather("shfl", {{std::bit_cast<uint32_t>(v)}})[from & 31].words[0]);
}
template <class T>
T __shfl_xor_sync(uint32_t all, T v, int mask) {
  return __shfl_sync(all, v, static_cast<int>(threadIdx.x & 31) ^ mask);
}
inline int __any_sync(uint32_t, bool v) {
  const simt::Lane* all = simt::gather("vote", {{v ? 1u : 0u}});
  return std::any_of(all, all + 32, [](const simt::Lane& lane) { return lane.words[0] != 0; });
}
inline void __syncwarp() { simt::gather("syncwarp", {}); }
