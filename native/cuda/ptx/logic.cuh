// Logic of three words in one instruction.
#pragma once
#include <cstdint>

namespace lpq::cuda {

// a & b ^ c
__device__ __forceinline__ uint32_t and_xor(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

}  // namespace lpq::cuda
