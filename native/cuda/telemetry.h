// What a device's sensors say, by the driver's management library (NVML), opened with dlopen.
#pragma once
#include <optional>

namespace lpq::cuda {

// MHz, watts, degrees Celsius. `limits`: the bits of NVML's clock event reasons. What the device does not tell is
// missing.
struct Telemetry {
  std::optional<double> sm_clock, memory_clock, power, power_limit, temperature, limits;
};

// Any thread, once a backend is open. Nothing where NVML is missing or does not know the device.
std::optional<Telemetry> telemetry(int ordinal);

}  // namespace lpq::cuda
