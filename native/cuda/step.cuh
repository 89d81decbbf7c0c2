// What kernels of a decode step share: launches that follow one another closely, and elements of a type known at run time.
#pragma once
#include "cuda/types.cuh"

namespace lpq {

// Until the operation before has ended and what it wrote is seen; from here on the next may start (CudaExec::launch_after). Before
// anything is read or written that others touch.
__device__ __forceinline__ void follow() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void store_any(void* p, int type, index_t i, float v) {
  if (type == 0) static_cast<float*>(p)[i] = v;
  else if (type == 1) static_cast<f16*>(p)[i] = narrow<f16>(v);
  else static_cast<bf16*>(p)[i] = narrow<bf16>(v);
}

}  // namespace lpq
