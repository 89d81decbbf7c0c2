// The launcher of large.cuh.
#pragma once
#include <string>

#include "cuda/exec.h"
#include "cuda/gemm/families/large.h"
#include "lpq/exec.h"

namespace lpq::cuda {

// There is a kernel of many tokens for `name` (a kernel of packed.cpp), and its arithmetic holds these scales:
// bf16 scales do not fit the weights of f16 activations.
bool has_gemm_large(CudaExec& exec, const std::string& name, const GemmPackedArgs& a, bool bf16);

// The whole product, codes of `bits` bits. `a` holds all but the tiling; rows of its x start at multiples of 16 bytes.
// Params that override: tokens (of a
// tile: 32, 64 or 128), blocks, and stripes: 1 for equal runs of steps, 0 for whole tiles.
void gemm_large(CudaExec& exec, const std::string& name, int bits, GemmPackedArgs a, const Params& params);

}  // namespace lpq::cuda
