// native/cuda/ptx/griddepcontrol.cuh, simulated: a kernel begins when the one before has ended.
#pragma once

namespace lpq::cuda {

inline void griddepcontrol_wait() {}
inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait_and_launch() {}

}  // namespace lpq::cuda
