// Products of a warp on the tensor cores (PTX ISA, "Matrix multiply-accumulate operation using mma instruction"): c +=
// A B. A 16 rows, row-major (in these kernels the weights: rows are n); B 8 columns (activations: columns are tokens);
// c 16x8.
//   16 bits:  A (lane, reg) -> rows lane / 4 + 8 (reg % 2), k 2 (lane % 4) + 8 (reg / 2) and the next
//             B (lane, reg) -> k 2 (lane % 4) + 8 reg and the next, column lane / 4
//   8 bits:   A (lane, reg) -> rows lane / 4 + 8 (reg % 2), k 4 (lane % 4) + 16 (reg / 2) .. + 3;  B: k 4 (lane % 4) +
//   16 reg .. + 3 all:      c (lane, reg) -> row lane / 4 + 8 (reg / 2), column 2 (lane % 4) + reg % 2
#pragma once
#include <cstdint>

namespace lpq::cuda {

template <bool BF>
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (BF)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_m16n8k32_s8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// 64 of k in 4 bits: a lane's four become eight, 16 becomes 32. On Hopper it is emulated, exactly.
__device__ __forceinline__ void mma_m16n8k64_s4(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ptxas 13 advises the ordered form from sm_80 on, which metadata that names two places in ascending order satisfies;
// compilers before CUDA 12.5 have the older name only.
#if __CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 5)
#define LPQ_MMA_SPARSE "mma.sp::ordered_metadata"
#else
#define LPQ_MMA_SPARSE "mma.sp"
#endif
// A 16x32 in 2:4 form (16x16 stored). Selector: which two threads of every four hold the metadata, those 0 and 1 or
// those 2 and 3 (PTX ISA, "Matrix fragments for sparse mma.m16n8k32").
template <bool BF, int Selector>
__device__ __forceinline__ void mma_sp_m16n8k32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[4],
                                                uint32_t metadata) {
#define LPQ_SPARSE_OF(type)                                                                                    \
  asm(LPQ_MMA_SPARSE ".sync.aligned.m16n8k32.row.col.f32." type "." type                                       \
                     ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9,%10,%11}, {%0,%1,%2,%3}, %12, %13;"            \
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                         \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(metadata), \
        "n"(Selector))
  if constexpr (BF) LPQ_SPARSE_OF("bf16");
  else LPQ_SPARSE_OF("f16");
#undef LPQ_SPARSE_OF
}

}  // namespace lpq::cuda
