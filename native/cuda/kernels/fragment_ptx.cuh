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

// Sixteen bytes that are read once, past L1.
__device__ __forceinline__ uint4 load_weights16(const void* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
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
