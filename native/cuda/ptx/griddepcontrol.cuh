// Programmatic dependent launch: how a kernel that may be launched early (CudaExec::launch_after) waits. Nothing before
// 9.0, where no kernel is launched early.
#pragma once
#include "cuda/ptx/features.cuh"

namespace lpq::cuda {

// Until the kernels before have ended and all that they wrote is seen. Comes before anything is read or written that
// others touch.
__device__ __forceinline__ void griddepcontrol_wait() {
#if defined(__CUDA_ARCH__) && LPQ_HAS_TMA
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel may start; it waits in its turn.
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
#if defined(__CUDA_ARCH__) && LPQ_HAS_TMA
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void griddepcontrol_wait_and_launch() {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
}
// The next kernel may start even while the ones before this one run (CudaExec::launch_through).
__device__ __forceinline__ void griddepcontrol_launch_and_wait() {
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
}

}  // namespace lpq::cuda
