// How the kernels of packed.cuh and packed_sm90.cuh cut a product of up to 64 tokens: warps of packed blocks by tiles
// of eight tokens.
#pragma once
#include "cuda/gemm/families/packed_cut.h"
#include "cuda/gemm/families/packed_problem.h"

namespace lpq::cuda {

// Throws Failure("LPQ_NATIVE_ARGUMENT") where what is wished for does not fit.
PackedTiles cut_tiles(const PackedForm& p, int64_t tokens, bool wgmma, const DeviceFacts& device);
// The most tokens of a launch, `most` or a half, a quarter of it: those whose smallest tiling fits shared memory.
int64_t fitting_tokens(const PackedForm& p, int64_t most, bool wgmma, const DeviceFacts& device);
std::string tiles_text(const PackedTiles& t);
// Cuts each `most` tokens and launches `kernel(args, cut)` with parts and counters in place. Rows in units of `unit`.
void launch_tiles(const PackedProblem& p, int64_t most, bool wgmma, int unit, CudaExec& exec,
                  const std::function<void(const GemmPackedArgs&, const PackedTiles&)>& kernel);

}  // namespace lpq::cuda
