// What warps of a block agree on: named barriers, registers handed over, and what the compiler must keep in order.
#pragma once
#include <cstdint>

#include "cuda/ptx/features.cuh"

namespace lpq::cuda {

// Barrier `id` of `threads` threads: waits for all, or counts in without waiting.
__device__ __forceinline__ void bar_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void bar_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

#if LPQ_HAS_WGMMA
template <int N>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
#endif

// The compiler takes `v` for written here: by asynchronous products, or to be made before what follows. No instruction.
__device__ __forceinline__ void keep_here(float& v) { asm volatile("" : "+f"(v)::"memory"); }
__device__ __forceinline__ void keep_here(int& v) { asm volatile("" : "+r"(v)::"memory"); }
__device__ __forceinline__ void keep_here(uint32_t& v) { asm volatile("" : "+r"(v)::"memory"); }

}  // namespace lpq::cuda
