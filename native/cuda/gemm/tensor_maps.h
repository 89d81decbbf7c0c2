// How TMA is told where boxes of a tensor lie.
#pragma once
#include <cstdint>

#include "cuda/gemm/families/packed.h"

namespace lpq::cuda {

// Elements of boxes: unsigned of 8, 16, 32 and 64 bits, since copies care for sizes alone.
constexpr int kMap8 = 0, kMap16 = 1, kMap32 = 2, kMap64 = 4;

// The driver can describe tensors (CUDA 12 and later).
bool can_describe_tensors();

// While one lives on a thread, all tensors can be described there, to nobody: for rehearsals without a device
// (cuda/hosted.h).
struct NoTensorMaps {
  NoTensorMaps();
  ~NoTensorMaps();
};

// How a tensor of three dimensions, innermost first, is cut into boxes; strides in bytes, of the outer two dimensions.
// `swizzle`: rows of 128 bytes with their sixteen-byte chunks xor-ed with the row's number modulo 8.
TensorMap describe_boxes(const void* address, int type, const uint64_t (&dims)[3], const uint64_t (&strides)[2],
                         const uint32_t (&box)[3], bool swizzle);

}  // namespace lpq::cuda
