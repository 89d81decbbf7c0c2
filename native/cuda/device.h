// What the driver says of a device.
#pragma once
#include "cuda/exec.h"

namespace lpq::cuda {

// Throws Failure of driver() and check().
DeviceFacts device_facts(int ordinal);

}  // namespace lpq::cuda
