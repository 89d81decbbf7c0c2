// What a mixture of experts does with rows beside the operations of ops/routing.h.
#pragma once
#include "cuda/exec.h"

namespace lpq::cuda {

// y[t] = sum over j < places of weights[t * places + j] * x[m] with rows[m] = t * places + j, in order of m, of m below
// *end, which lies on the device; 0 where there is none. x [M,C] and y [T,C] f16 or bf16, rows I32 [M], weights f32 [T
// * places]. A row that is none: LPQ_NATIVE_ARGUMENT.
void combine_rows(CudaExec& exec, const Tensor& x, const Tensor& rows, const int32_t* end, const float* weights,
                  const Tensor& y, int64_t places);

}  // namespace lpq::cuda
