// The wide kernel's launcher (wide.cuh): which tiles, and the launch.
#pragma once
#include <string>

#include "cuda/exec.h"
#include "cuda/gemm/families/packed.h"
#include "lpq/exec.h"
#include "lpq/quant_type.h"

namespace lpq::cuda {

// There is a wide kernel called `name` for this device.
bool has_gemm_wide(CudaExec& exec, const std::string& name);

// Whether it is what was timed and was the fastest (docs/internals/kernels/wide.md): integers of 4 bits, one group a
// packed block or one scale a row, zero points that leave in the pairs, from 9 tokens on.
bool wide_pays(const GemmPackedArgs& a, const QuantType& type, bool bf16, int64_t tokens);

// The whole product. `a` holds all but the tiling; its x has rows at multiples of 128 bytes that end with zeros. Params
// that override: tokens (of a tile), width, stages, blocks, overlap. `safe`: the operation before wrote neither weights
// nor scales nor zero points, so that this one may begin to read them while that one ends; `overlap: 0` forbids it.
void gemm_wide(CudaExec& exec, const std::string& name, GemmPackedArgs a, int bits, bool bf16, bool safe,
               const Params& params);

// The same with scaled weights (scaled.cuh).
bool has_gemm_scaled(CudaExec& exec, const std::string& name);
void gemm_scaled(CudaExec& exec, const std::string& name, GemmPackedArgs a, const QuantType& type, bool bf16, bool safe,
                 const Params& params);

}  // namespace lpq::cuda
