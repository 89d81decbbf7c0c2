#include "cuda/driver.h"

#include <dlfcn.h>

#include <mutex>

namespace lpq::cuda {
namespace {

constexpr int kOldest = 12000;

// "CUDA 12.4" of 12040.
std::string version_text(int version) {
  return "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Driver open_driver() {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* reason = ::dlerror();
    throw Failure("LPQ_CUDA_DRIVER",
                  std::string("no NVIDIA driver was found: ") + (reason ? reason : "libcuda.so.1 is missing"));
  }
  Driver api;
  // The version is asked for first: a driver too old also lacks names.
  *reinterpret_cast<void**>(&api.driver_version) = ::dlsym(library, "cuDriverGetVersion");
  if (api.driver_version && api.driver_version(&api.version) == kSuccess && api.version < kOldest)
    throw Failure("LPQ_CUDA_DRIVER", "the NVIDIA driver speaks " + version_text(api.version) + ", lpq needs " +
                                         version_text(kOldest) + " or newer");
#define LPQ_LOAD(member, name, parameters)                          \
  *reinterpret_cast<void**>(&api.member) = ::dlsym(library, #name); \
  if (!api.member) throw Failure("LPQ_CUDA_DRIVER", "the NVIDIA driver lacks " #name);
  LPQ_DRIVER_FUNCTIONS(LPQ_LOAD)
#undef LPQ_LOAD
  const CUresult started = api.init(0);
  if (started == kNoDevice) throw Failure("LPQ_CUDA_DEVICE", "the NVIDIA driver finds no device");
  if (started != kSuccess) {
    const char* text = nullptr;
    api.error_string(started, &text);
    throw Failure("LPQ_CUDA_DRIVER", std::string("the NVIDIA driver does not start: ") +
                                         (text ? text : "unknown reason") + " (" + std::to_string(started) + ")");
  }
  return api;
}

// Errors after which every call of the context fails: bad addresses, traps, asserts, a hung or vanished device.
bool lost(CUresult result) {
  return result == 4 || result == 46 || result == 214 || result == 220 || result == 226 ||
         (result >= 700 && result <= 702) || (result >= 709 && result <= 719) || result == 999;
}

}  // namespace

const Driver& driver() {
  static std::mutex mutex;
  static const Driver* opened = nullptr;
  std::lock_guard lock(mutex);  // a failed attempt is repeated: the next caller gets the same message
  if (!opened) opened = new Driver(open_driver());
  return *opened;
}

void check(CUresult result, const char* what) {
  if (result == kSuccess) return;
  const char *name = nullptr, *text = nullptr;
  driver().error_name(result, &name);
  driver().error_string(result, &text);
  const char* code = result == kOutOfMemory ? "LPQ_CUDA_MEMORY"
                     : result == kNoBinary  ? "LPQ_CUDA_KERNELS"
                     : lost(result)         ? "LPQ_CUDA_LOST"
                                            : "LPQ_CUDA";
  throw Failure(code, std::string(what) + ": " + (text ? text : "unknown error") + " (" +
                          (name ? name : std::to_string(result)) + ")");
}

void check(CUresult result, const std::string& what) { check(result, what.c_str()); }

}  // namespace lpq::cuda
