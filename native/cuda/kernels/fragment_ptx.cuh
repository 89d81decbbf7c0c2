// Instructions of gemm_sparse.cuh and gemm_large.cuh besides those of mma.cuh and stripe_instructions.cuh. test/native/fake-device
// has the same for the host, so that the kernels' own sources run there.
#pragma once
#include <cstdint>

namespace lpq::cuda {

// ptxas 13 advises the ordered form from sm_80 on, which metadata that names two places in ascending order satisfies; compilers
// before CUDA 12.5 have the older name only.
#if __CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 5)
#define LPQ_MMA_SPARSE "mma.sp::ordered_metadata"
#else
#define LPQ_MMA_SPARSE "mma.sp"
#endif

// c += A B: A 16x32 in 2:4 form (16x16 stored), B 32x8 (columns are tokens), c 16x8 f32. Selector: which two threads of every four
// hold the metadata, those 0 and 1 or those 2 and 3 (PTX ISA, "Matrix fragments for sparse mma.m16n8k32").
template <bool BF, int Selector>
__device__ __forceinline__ void multiply_sparse(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[4], uint32_t metadata) {
#define LPQ_SPARSE_OF(type)                                                                                                             \
  asm(LPQ_MMA_SPARSE ".sync.aligned.m16n8k32.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9,%10,%11}, {%0,%1,%2,%3}, %12, %13;" \
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                                                 \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(metadata), "n"(Selector))
  if constexpr (BF) LPQ_SPARSE_OF("bf16");
  else LPQ_SPARSE_OF("f16");
#undef LPQ_SPARSE_OF
}

// a * b + c of pairs in f16 or bf16; of b and c half 0 or 1 counts for both, or each its own (-1).
template <bool BF, int OfB, int OfC>
__device__ __forceinline__ uint32_t fma_halves(uint32_t a, uint32_t b, uint32_t c) {
#define LPQ_HALF_OF(h) "mov.b32 {l, u}, %" h ";\n"
#define LPQ_FMA_OF(type, take_b, take_c) \
  asm("{\n.reg .b16 l, u;\n.reg .b32 b, c;\n" LPQ_HALF_OF("2") "mov.b32 b, {" take_b "};\n" LPQ_HALF_OF("3") "mov.b32 c, {" take_c "};\nfma.rn." type " %0, %1, b, c;\n}" : "=r"(r) : "r"(a), "r"(b), "r"(c))
#define LPQ_FMA_C(type, take_b)                            \
  if constexpr (OfC < 0) LPQ_FMA_OF(type, take_b, "l, u"); \
  else if constexpr (OfC == 0) LPQ_FMA_OF(type, take_b, "l, l"); \
  else LPQ_FMA_OF(type, take_b, "u, u")
#define LPQ_FMA_B(type)                                 \
  if constexpr (OfB < 0) { LPQ_FMA_C(type, "l, u"); }   \
  else if constexpr (OfB == 0) { LPQ_FMA_C(type, "l, l"); } \
  else { LPQ_FMA_C(type, "u, u"); }
  uint32_t r;
  if constexpr (BF) { LPQ_FMA_B("bf16x2") }
  else { LPQ_FMA_B("f16x2") }
#undef LPQ_FMA_B
#undef LPQ_FMA_C
#undef LPQ_FMA_OF
#undef LPQ_HALF_OF
  return r;
}

// Counts one more and returns how many there were: what the block wrote before a barrier is seen by whoever counts later, and the other way round.
__device__ __forceinline__ unsigned count_up(unsigned* counter) {
  unsigned before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

// Only if `any`, without a branch: a half-word or a byte to the low bits of v.
__device__ __forceinline__ void load2_if(bool any, uint32_t& v, const void* from) {
  asm volatile("{\n.reg .pred p;\n.reg .b16 h;\nsetp.ne.b32 p, %1, 0;\n@p ld.global.nc.u16 h, [%2];\n@p cvt.u32.u16 %0, h;\n}" : "+r"(v) : "r"(static_cast<int>(any)), "l"(from));
}
__device__ __forceinline__ void load1_if(bool any, uint32_t& v, const void* from) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\n@p ld.global.nc.u8 %0, [%2];\n}" : "+r"(v) : "r"(static_cast<int>(any)), "l"(from));
}

__device__ __forceinline__ void store_shared8(uint32_t address, uint32_t a, uint32_t b) { asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(address), "r"(a), "r"(b) : "memory"); }
__device__ __forceinline__ void store_shared2(uint32_t address, uint16_t v) { asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(v) : "memory"); }
__device__ __forceinline__ void store_shared4(uint32_t address, uint32_t v) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory"); }

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
// Barriers that one thread made are seen by the others, and by the bulk engine.
// Until the operation before has ended and all that it wrote is seen; from here on the next may start.
__device__ __forceinline__ void operation_before() { asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void barriers_are_there() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
#endif

}  // namespace lpq::cuda
