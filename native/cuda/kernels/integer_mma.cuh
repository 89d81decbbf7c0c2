// The tensor core's products of integers before Hopper's wgmma: operand A 16 rows (weights) in registers, operand B 8 columns (tokens).
#pragma once
#include <cstdint>

namespace lpq::cuda {

// c += A B, 32 of k. A: (lane, reg) -> row lane / 4 + 8 (reg % 2), k 4 (lane % 4) .. + 3 + 16 (reg / 2); B: (lane, reg) -> column lane / 4,
// k 4 (lane % 4) .. + 3 + 16 reg; C: (lane, reg) -> row lane / 4 + 8 (reg / 2), column 2 (lane % 4) + reg % 2.
__device__ __forceinline__ void multiply_s8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The same of 64 of k of 4 bits: a lane's four become eight, 16 becomes 32. On Hopper it is emulated, exactly.
__device__ __forceinline__ void multiply_s4(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace lpq::cuda
