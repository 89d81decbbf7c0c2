#include "cuda/attention/kv_pack.cuh"

extern "C" __global__ void __launch_bounds__(lpq::cuda::kPackThreads) lpq_kv_pack(const __grid_constant__ lpq::cuda::KvPackArgs a) { lpq::cuda::kv_pack(a); }
