// native/cuda/ptx/griddepcontrol.cuh, simulated: the kernel before ends, for a block, when one of its threads first
// waits for it.
#pragma once
#include <functional>
#include <utility>

#include "simulator.h"

namespace simt {

inline std::function<void()> kernel_before;  // what is left of it to do; empty: nothing

// What the kernel before writes as it ends. Who reads that without waiting finds what was there, `blank`.
struct KernelBefore {
  std::function<void()> blank, write;
  unsigned block = ~0u;
  // A thread begins; blocks run one after another.
  void begin() {
    if (blockIdx.x == block) return;
    block = blockIdx.x;
    blank();
    kernel_before = write;
  }
};

}  // namespace simt

namespace lpq::cuda {

inline void griddepcontrol_wait() {
  if (simt::kernel_before) std::exchange(simt::kernel_before, nullptr)();
}
inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait_and_launch() { griddepcontrol_wait(); }
inline void griddepcontrol_launch_and_wait() { griddepcontrol_wait(); }

}  // namespace lpq::cuda
