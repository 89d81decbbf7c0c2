// What devices can do, by compute capability: the only place that asks for a number. Kernels and planners ask for a
// feature.
#pragma once
#include <string>

namespace lpq::cuda {

// A device is a row of features.cpp. What is newer than the table runs on the portable kernels (mma.sync), through PTX.
struct Features {
  bool portable = false;      // mma.sync, cp.async, ldmatrix: what lpq needs at least
  bool wgmma = false;         // with TMA, clusters and setmaxnreg: the kernels built for sm_90a
  bool early_launch = false;  // kernels built for it wait by griddepcontrol, so that they may be launched early
};
// arch: 10 * major + minor.
Features features_of(int arch);

// As NVIDIA writes it: 90 is "9.0".
std::string compute_capability(int arch);

// A device that is described instead of asked (lpq bench kernels --explain): null where there is none of the name.
struct DescribedDevice {
  const char *name, *title;
  int arch, multiprocessors, shared_per_block;
};
const DescribedDevice* described(const std::string& name);
// Their names, for messages.
std::string described_names();

}  // namespace lpq::cuda
