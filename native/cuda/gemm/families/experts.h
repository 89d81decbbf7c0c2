// What the launcher tells the kernels lpq_experts_* beside GemmPackedArgs, which are those of all experts: n, n_blocks,
// strips and steps of one expert, weights, scales and zeros of the first, m all rows of x.
#pragma once
#include <cstdint>

#include "cuda/gemm/families/packed.h"
#include "cuda/host_device.h"

namespace lpq::cuda {

struct ExpertArgs {
  const int* offsets;  // [experts + 1]
  int experts;
  uint32_t* fault;  // anything but 0: the offsets do not ascend inside x
  int sharing;      // what blocks share takes them about as long as so many steps
};

// Shared memory that a block's plan takes (kernels/experts/items.cuh).
LPQ_HOST_DEVICE constexpr int expert_plan_bytes(int experts) { return (8 * (experts + 1) + 1023) & ~1023; }

}  // namespace lpq::cuda
