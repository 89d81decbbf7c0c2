#include "cuda/telemetry.h"

#include <dlfcn.h>

#include <map>
#include <mutex>

#include "cuda/driver.h"

namespace lpq::cuda {
namespace {

using NvmlDevice = struct nvmlDevice_st*;
enum NvmlClock : int { kSmClock = 1, kMemoryClock = 2 };
constexpr int kGpuTemperature = 0, kNvmlSuccess = 0;

struct Nvml {
  bool open = false;
  int (*init)() = nullptr;
  int (*by_bus)(const char* bus, NvmlDevice* device) = nullptr;
  int (*clock)(NvmlDevice, int which, unsigned* megahertz) = nullptr;
  int (*power)(NvmlDevice, unsigned* milliwatts) = nullptr;
  int (*power_limit)(NvmlDevice, unsigned* milliwatts) = nullptr;
  int (*temperature)(NvmlDevice, int sensor, unsigned* degrees) = nullptr;
  int (*limits)(NvmlDevice, unsigned long long* bits) = nullptr;
};

Nvml open_nvml() {
  Nvml api;
  void* library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return api;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
  };
  find(api.init, "nvmlInit_v2");
  find(api.by_bus, "nvmlDeviceGetHandleByPciBusId_v2");
  find(api.clock, "nvmlDeviceGetClockInfo");
  find(api.power, "nvmlDeviceGetPowerUsage");
  find(api.power_limit, "nvmlDeviceGetEnforcedPowerLimit");
  find(api.temperature, "nvmlDeviceGetTemperature");
  find(api.limits, "nvmlDeviceGetCurrentClocksThrottleReasons");
  api.open = api.init && api.by_bus && api.init() == kNvmlSuccess;
  return api;
}

// NVML and CUDA number devices differently; the bus is what they have in common.
NvmlDevice find_device(const Nvml& nvml, int ordinal) {
  using BusId = CUresult (*)(char* text, int length, CUdevice device);
  void* cuda = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  const auto bus_id = cuda ? reinterpret_cast<BusId>(::dlsym(cuda, "cuDeviceGetPCIBusId")) : nullptr;
  CUdevice device = 0;
  char bus[32] = {};
  NvmlDevice found = nullptr;
  if (!bus_id || driver().device_get(&device, ordinal) != kSuccess || bus_id(bus, sizeof(bus), device) != kSuccess)
    return nullptr;
  return nvml.by_bus(bus, &found) == kNvmlSuccess ? found : nullptr;
}

}  // namespace

std::optional<Telemetry> telemetry(int ordinal) {
  static std::mutex mutex;
  static std::map<int, NvmlDevice> devices;
  std::lock_guard lock(mutex);
  static const Nvml nvml = open_nvml();
  if (!nvml.open) return std::nullopt;
  const auto [at, fresh] = devices.try_emplace(ordinal, nullptr);
  if (fresh) at->second = find_device(nvml, ordinal);
  const NvmlDevice device = at->second;
  if (!device) return std::nullopt;
  Telemetry seen;
  unsigned value = 0;
  unsigned long long bits = 0;
  if (nvml.clock && nvml.clock(device, kSmClock, &value) == kNvmlSuccess) seen.sm_clock = value;
  if (nvml.clock && nvml.clock(device, kMemoryClock, &value) == kNvmlSuccess) seen.memory_clock = value;
  if (nvml.power && nvml.power(device, &value) == kNvmlSuccess) seen.power = value / 1e3;
  if (nvml.power_limit && nvml.power_limit(device, &value) == kNvmlSuccess) seen.power_limit = value / 1e3;
  if (nvml.temperature && nvml.temperature(device, kGpuTemperature, &value) == kNvmlSuccess) seen.temperature = value;
  if (nvml.limits && nvml.limits(device, &bits) == kNvmlSuccess) seen.limits = static_cast<double>(bits);
  return seen;
}

}  // namespace lpq::cuda
