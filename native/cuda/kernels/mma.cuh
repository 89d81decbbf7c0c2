// The instructions of the GEMM kernels: fragments from shared memory, the tensor core's product, asynchronous copies.
#pragma once
#include <cstdint>

namespace lpq::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ uint4 load_shared16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
  return v;
}

// c += A B: A 16x16 row-major (weights: rows are n), B 16x8 (activations: columns are tokens), c 16x8 f32.
template <bool BF>
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (BF)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Sixteen bytes to shared memory, of which the first `bytes` are read and the rest is 0.
__device__ __forceinline__ void copy16_async(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most N of the newest groups are under way.
template <int N>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
__device__ __forceinline__ void wait_copies(int n) {
  switch (n) {
    case 0: return wait_copies<0>();
    case 1: return wait_copies<1>();
    case 2: return wait_copies<2>();
    case 3: return wait_copies<3>();
    case 4: return wait_copies<4>();
    case 5: return wait_copies<5>();
    case 6: return wait_copies<6>();
    default: return wait_copies<7>();
  }
}

// Hopper's own: wgmma (sm_90a alone), barriers that count bytes, the bulk engine.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
__device__ __forceinline__ void group_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void group_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void group_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Rows of 64 halves, 128 bytes apart, sixteen-byte chunks xor-ed with the row's number modulo 8 (the 128-byte swizzle); eights
// of rows 1024 bytes apart. `address` 1024-aligned; add 2 to the descriptor for the next 16 of k.
__device__ __forceinline__ uint64_t rows_descriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | uint64_t{1} << 16 | uint64_t{64} << 32 | uint64_t{1} << 62;
}

// c (+)= A B for the 64 rows of a warpgroup: A, 16 rows a warp, in registers; B of 8 T tokens behind a descriptor. Asynchronous.
template <bool BF, int T>
__device__ __forceinline__ void group_multiply(float (&c)[T][4], const uint32_t (&a)[4], uint64_t b, bool add) {
#define LPQ_C(t) "+f"(c[t][0]), "+f"(c[t][1]), "+f"(c[t][2]), "+f"(c[t][3])
#define LPQ_IN "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add))
#define LPQ_WG(n, type, list, i0, i1, i2, i3, id, ip, outs)                                                                              \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" ip ", 0;\n"                                                                          \
               "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" list "}, {%" i0 ",%" i1 ",%" i2 ",%" i3 "}, %" id ", p, 1, 1, 0;\n}" \
               : outs                                                                                                                   \
               : LPQ_IN)
#define LPQ_EITHER(n, list, i0, i1, i2, i3, id, ip, ...)                                            \
  if constexpr (BF) LPQ_WG(n, "bf16", list, i0, i1, i2, i3, id, ip, LPQ_LIST(__VA_ARGS__));          \
  else LPQ_WG(n, "f16", list, i0, i1, i2, i3, id, ip, LPQ_LIST(__VA_ARGS__))
#define LPQ_LIST(...) __VA_ARGS__
#define LPQ_L4 "%0,%1,%2,%3"
#define LPQ_L8 LPQ_L4 ",%4,%5,%6,%7"
#define LPQ_L16 LPQ_L8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define LPQ_L32 LPQ_L16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define LPQ_L64                                                                                                          \
  LPQ_L32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58" \
          ",%59,%60,%61,%62,%63"
  if constexpr (T == 1) {
    LPQ_EITHER("8", LPQ_L4, "4", "5", "6", "7", "8", "9", LPQ_C(0));
  } else if constexpr (T == 2) {
    LPQ_EITHER("16", LPQ_L8, "8", "9", "10", "11", "12", "13", LPQ_C(0), LPQ_C(1));
  } else if constexpr (T == 4) {
    LPQ_EITHER("32", LPQ_L16, "16", "17", "18", "19", "20", "21", LPQ_C(0), LPQ_C(1), LPQ_C(2), LPQ_C(3));
  } else if constexpr (T == 8) {
    LPQ_EITHER("64", LPQ_L32, "32", "33", "34", "35", "36", "37", LPQ_C(0), LPQ_C(1), LPQ_C(2), LPQ_C(3), LPQ_C(4), LPQ_C(5), LPQ_C(6), LPQ_C(7));
  } else {
    static_assert(T == 16);
    LPQ_EITHER("128", LPQ_L64, "64", "65", "66", "67", "68", "69", LPQ_C(0), LPQ_C(1), LPQ_C(2), LPQ_C(3), LPQ_C(4), LPQ_C(5), LPQ_C(6), LPQ_C(7), LPQ_C(8), LPQ_C(9),
               LPQ_C(10), LPQ_C(11), LPQ_C(12), LPQ_C(13), LPQ_C(14), LPQ_C(15));
  }
#undef LPQ_C
#undef LPQ_IN
#undef LPQ_WG
#undef LPQ_EITHER
#undef LPQ_LIST
#undef LPQ_L4
#undef LPQ_L8
#undef LPQ_L16
#undef LPQ_L32
#undef LPQ_L64
}

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory"); }
__device__ __forceinline__ void barrier_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// A box of a tensor of three dimensions, innermost coordinate first; 0 beyond the tensor.
__device__ __forceinline__ void copy_box(uint32_t to, const void* map, int c0, int c1, int c2, uint32_t barrier) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to), "l"(map),
               "r"(c0), "r"(c1), "r"(c2), "r"(barrier)
               : "memory");
}
// The same for what is read once: L2 drops it first. The policy's encoding is that of createpolicy.fractional.L2::evict_first.
__device__ __forceinline__ void copy_box_once(uint32_t to, const void* map, int c0, int c1, int c2, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(barrier), "l"(0x12f0000000000000ull)
      : "memory");
}
// Four 8x8 matrices, transposed: lane 8 i + j says where column j of matrix i goes.
__device__ __forceinline__ void store_matrices_transposed(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
template <int N>
__device__ __forceinline__ void registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
__device__ __forceinline__ void barrier_among(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
#endif

}  // namespace lpq::cuda
