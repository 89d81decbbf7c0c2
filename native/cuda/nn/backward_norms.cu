// Kernels of backward_norms.cuh: rows that are held, and any.
#include "cuda/nn/backward_norms.cuh"

using namespace lpq;

extern "C" __global__ void __launch_bounds__(1024) lpq_rmsnorm_backward_held(NormGradient a) {
  rmsnorm_backward<HeldRow>(a);
}
extern "C" __global__ void __launch_bounds__(1024) lpq_rmsnorm_backward(NormGradient a) {
  rmsnorm_backward<ReadRow>(a);
}
extern "C" __global__ void __launch_bounds__(1024) lpq_layernorm_backward_held(NormGradient a) {
  layernorm_backward<HeldRow>(a);
}
extern "C" __global__ void __launch_bounds__(1024) lpq_layernorm_backward(NormGradient a) {
  layernorm_backward<ReadRow>(a);
}
