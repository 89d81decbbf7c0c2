// Attention of many queries over a packed cache: how a launch is cut up.
#pragma once
#include "cuda/attention/kv_form.h"

namespace lpq::cuda {

// `a`: as kv_decode fills it, but for what follows from the cut.
void kv_prefill(const ops::KvDecode& of, const KvCache& cache, KvDecodeArgs a, CudaExec& exec);

}  // namespace lpq::cuda
