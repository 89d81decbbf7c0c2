// native/cuda/ptx/logic.cuh on the host.
#pragma once
#include <cstdint>

namespace lpq::cuda {

inline uint32_t and_xor(uint32_t a, uint32_t b, uint32_t c) { return (a & b) ^ c; }

}  // namespace lpq::cuda
