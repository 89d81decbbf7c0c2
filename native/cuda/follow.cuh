// How a kernel that may be launched early (CudaExec::launch_after) begins.
#pragma once

namespace lpq {

// Until the operation before has ended and what it wrote is seen; from here on the next may start. Comes before anything is read or
// written that others touch. Nothing before 9.0, where no kernel is launched early.
__device__ __forceinline__ void follow() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace lpq
