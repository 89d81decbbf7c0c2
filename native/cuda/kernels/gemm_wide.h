// The wide kernel's launcher (gemm_wide.cuh): which tiles, and the launch.
#pragma once
#include <string>

#include "cuda/exec.h"
#include "cuda/kernels/gemm_packed.h"
#include "lpq/exec.h"

namespace lpq::cuda {

// There is a wide kernel called `name` for this device.
bool has_gemm_wide(CudaExec& exec, const std::string& name);

// The whole product. `a` holds all but the tiling; its x has rows at multiples of 128 bytes that end with zeros. Params that override: tokens
// (of a tile), width, stages, blocks, overlap.
void gemm_wide(CudaExec& exec, const std::string& name, GemmPackedArgs a, int bits, bool bf16, const Params& params);

}  // namespace lpq::cuda
