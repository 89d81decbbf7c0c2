// What the launcher tells the kernels lpq_experts_* beside GemmPackedArgs, which are those of all experts: n, n_blocks,
// strips and steps of one expert, weights, scales and zeros of the first, m all rows of x.
#pragma once
#include <cstdint>

#include "cuda/gemm/families/packed.h"
#include "cuda/host_device.h"

namespace lpq::cuda {

// What the rows of weights are to y. Not gated (kind 0): its columns. Else eights of rows stand by turns, of the gate
// and of what it gates (up), and a column of y is
//   act(min(gate, limit)) (clamp(up, -limit, limit) + lift), act(x) by kind,
//   s = 1 / (1 + 2^(odd[0] x + odd[1] x^3 + odd[2] x^5 + odd[3] x^7 + odd[4] x^9))
struct ExpertGate {
  int kind;     // kGate*
  int columns;  // of y
  float odd[5], limit, lift;
};
constexpr int kGateLinear = 1;  // x s
constexpr int kGateShare = 2;   // s
constexpr int kGateSquare = 3;  // (x s)^2

struct ExpertArgs {
  const int* offsets;  // [experts + 1]
  int experts;
  uint32_t* fault;  // anything but 0: the offsets do not ascend inside x
  int sharing;      // what blocks share takes them about as long as so many steps
  ExpertGate gate;
};

// Shared memory that a block's plan takes (kernels/experts/items.cuh).
LPQ_HOST_DEVICE constexpr int expert_plan_bytes(int experts) { return (8 * (experts + 1) + 1023) & ~1023; }

}  // namespace lpq::cuda
