// Products of bytes on Hopper (gemm_act.cuh): wgmma of s8 and e4m3, whose rows of weights come from shared memory or registers, and what
// blocks of a cluster tell each other.
#pragma once
#include "cuda/kernels/mma.cuh"
#include "cuda/kernels/wide_ptx.cuh"

namespace lpq::cuda {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Rows of 128 bytes, swizzled as tensor maps do; eights of rows `stride` bytes apart. `address` 1024-aligned; add 2 for the next 32 of k.
__device__ __forceinline__ uint64_t byte_rows_descriptor(uint32_t address, int stride) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | uint64_t{1} << 16 | static_cast<uint64_t>(stride >> 4) << 32 | uint64_t{1} << 62;
}

#define LPQ_L8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define LPQ_L16 LPQ_L8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define LPQ_L32 LPQ_L16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define LPQ_L64                                                                                                          \
  LPQ_L32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58" \
          ",%59,%60,%61,%62,%63"
#define LPQ_I(t) "+r"(c[t][0]), "+r"(c[t][1]), "+r"(c[t][2]), "+r"(c[t][3])
#define LPQ_F(t) "+f"(c[t][0]), "+f"(c[t][1]), "+f"(c[t][2]), "+f"(c[t][3])
#define LPQ_2(X) X(0), X(1)
#define LPQ_4(X) LPQ_2(X), X(2), X(3)
#define LPQ_8(X) LPQ_4(X), X(4), X(5), X(6), X(7)
#define LPQ_16(X) LPQ_8(X), X(8), X(9), X(10), X(11), X(12), X(13), X(14), X(15)
// `tail`: what follows the predicate.
#define LPQ_SHARED(n, types, list, ia, ib, ip, outs, tail)                                                        \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" ip ", 0;\n"                                                   \
               "wgmma.mma_async.sync.aligned.m64n" n "k32." types " {" list "}, %" ia ", %" ib ", p" tail ";\n}" \
               : outs                                                                                            \
               : "l"(a), "l"(b), "r"(static_cast<int>(add)))
#define LPQ_REGISTERS(n, types, list, i0, i1, i2, i3, ib, ip, outs, tail)                                                               \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" ip ", 0;\n"                                                                        \
               "wgmma.mma_async.sync.aligned.m64n" n "k32." types " {" list "}, {%" i0 ",%" i1 ",%" i2 ",%" i3 "}, %" ib ", p" tail ";\n}" \
               : outs                                                                                                                 \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)))
#define LPQ_PASS(...) __VA_ARGS__

// c (+)= A B for the 64 rows of a warpgroup, 32 of k: A behind a descriptor or, 16 rows a warp, in registers; B of 8 T tokens behind a
// descriptor. Asynchronous. Exact for s8 as long as sums fit 32 bits.
template <int T>
__device__ __forceinline__ void multiply_bytes(int (&c)[T][4], uint64_t a, uint64_t b, bool add) {
  if constexpr (T == 2) LPQ_SHARED("16", "s32.s8.s8", LPQ_L8, "8", "9", "10", LPQ_PASS(LPQ_2(LPQ_I)), "");
  else if constexpr (T == 4) LPQ_SHARED("32", "s32.s8.s8", LPQ_L16, "16", "17", "18", LPQ_PASS(LPQ_4(LPQ_I)), "");
  else if constexpr (T == 8) LPQ_SHARED("64", "s32.s8.s8", LPQ_L32, "32", "33", "34", LPQ_PASS(LPQ_8(LPQ_I)), "");
  else LPQ_SHARED("128", "s32.s8.s8", LPQ_L64, "64", "65", "66", LPQ_PASS(LPQ_16(LPQ_I)), "");
}
template <int T>
__device__ __forceinline__ void multiply_bytes(float (&c)[T][4], uint64_t a, uint64_t b, bool add) {
  if constexpr (T == 2) LPQ_SHARED("16", "f32.e4m3.e4m3", LPQ_L8, "8", "9", "10", LPQ_PASS(LPQ_2(LPQ_F)), ", 1, 1");
  else if constexpr (T == 4) LPQ_SHARED("32", "f32.e4m3.e4m3", LPQ_L16, "16", "17", "18", LPQ_PASS(LPQ_4(LPQ_F)), ", 1, 1");
  else if constexpr (T == 8) LPQ_SHARED("64", "f32.e4m3.e4m3", LPQ_L32, "32", "33", "34", LPQ_PASS(LPQ_8(LPQ_F)), ", 1, 1");
  else LPQ_SHARED("128", "f32.e4m3.e4m3", LPQ_L64, "64", "65", "66", LPQ_PASS(LPQ_16(LPQ_F)), ", 1, 1");
}
template <int T>
__device__ __forceinline__ void multiply_bytes(int (&c)[T][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  if constexpr (T == 2) LPQ_REGISTERS("16", "s32.s8.s8", LPQ_L8, "8", "9", "10", "11", "12", "13", LPQ_PASS(LPQ_2(LPQ_I)), "");
  else if constexpr (T == 4) LPQ_REGISTERS("32", "s32.s8.s8", LPQ_L16, "16", "17", "18", "19", "20", "21", LPQ_PASS(LPQ_4(LPQ_I)), "");
  else if constexpr (T == 8) LPQ_REGISTERS("64", "s32.s8.s8", LPQ_L32, "32", "33", "34", "35", "36", "37", LPQ_PASS(LPQ_8(LPQ_I)), "");
  else LPQ_REGISTERS("128", "s32.s8.s8", LPQ_L64, "64", "65", "66", "67", "68", "69", LPQ_PASS(LPQ_16(LPQ_I)), "");
}
template <int T>
__device__ __forceinline__ void multiply_bytes(float (&c)[T][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  if constexpr (T == 2) LPQ_REGISTERS("16", "f32.e4m3.e4m3", LPQ_L8, "8", "9", "10", "11", "12", "13", LPQ_PASS(LPQ_2(LPQ_F)), ", 1, 1");
  else if constexpr (T == 4) LPQ_REGISTERS("32", "f32.e4m3.e4m3", LPQ_L16, "16", "17", "18", "19", "20", "21", LPQ_PASS(LPQ_4(LPQ_F)), ", 1, 1");
  else if constexpr (T == 8) LPQ_REGISTERS("64", "f32.e4m3.e4m3", LPQ_L32, "32", "33", "34", "35", "36", "37", LPQ_PASS(LPQ_8(LPQ_F)), ", 1, 1");
  else LPQ_REGISTERS("128", "f32.e4m3.e4m3", LPQ_L64, "64", "65", "66", "67", "68", "69", LPQ_PASS(LPQ_16(LPQ_F)), ", 1, 1");
}
#undef LPQ_L8
#undef LPQ_L16
#undef LPQ_L32
#undef LPQ_L64
#undef LPQ_I
#undef LPQ_F
#undef LPQ_2
#undef LPQ_4
#undef LPQ_8
#undef LPQ_16
#undef LPQ_SHARED
#undef LPQ_REGISTERS
#undef LPQ_PASS

__device__ __forceinline__ void written_by_products(int& v) { asm volatile("" : "+r"(v)::"memory"); }

// Counts in at a barrier without waiting.
__device__ __forceinline__ void barrier_pass(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
// The compiler makes `v` before what follows.
__device__ __forceinline__ void pinned(uint32_t& v) { asm volatile("" : "+r"(v)::"memory"); }

__device__ __forceinline__ int block_of_cluster() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void all_of_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Arrives at the barrier of block `rank` that lies where `barrier` lies in this one. Nothing was stored that the other would have to see,
// so that there is no release to the cluster, which would be a fence of everything: with it all took twice as long.
__device__ __forceinline__ void barrier_arrive_at(uint32_t barrier, int rank) {
  asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier), "r"(rank)
               : "memory");
}
// A box for both blocks of a cluster, at the same place and barrier of each.
__device__ __forceinline__ void copy_box_to_both(uint32_t to, const void* map, int c0, int c1, int c2, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to), "l"(map),
      "r"(c0), "r"(c1), "r"(c2), "r"(barrier), "h"(static_cast<uint16_t>(3))
      : "memory");
}
__device__ __forceinline__ void store_shared16(uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
// What this thread stored to shared memory, products and copies that begin later see.
__device__ __forceinline__ void shared_seen_by_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#endif

}  // namespace lpq::cuda
