// The CUDA driver API, opened with dlopen: lpq has no link-time dependency on CUDA and compiles without its headers.
// Only what lpq calls is declared; names and meanings are those of the driver's documentation.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "lpq/failure.h"

namespace lpq::cuda {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;

using CUmemHandle = unsigned long long;

// Where memory lies and who may use it, as the driver's virtual memory functions want it.
struct MemoryLocation {
  int type = 1;  // a device
  int id = 0;
};
struct MemoryProperties {
  int type = 1;  // not movable
  int handle_types = 0;
  MemoryLocation location;
  void* reserved_for_windows = nullptr;
  unsigned char flags[8] = {};
};
struct MemoryAccess {
  MemoryLocation location;
  int flags = 3;  // read and write
};

// Results that lpq tells apart.
constexpr CUresult kSuccess = 0, kOutOfMemory = 2, kNoDevice = 100, kNoBinary = 209, kNotFound = 500, kNotReady = 600,
                   kPeerAlreadyEnabled = 704;

enum DeviceAttribute : int {
  kMaxSharedPerBlock = 8,
  kMultiprocessors = 16,
  kMaxSharedPerBlockOptin = 97,
  kComputeMajor = 75,
  kComputeMinor = 76,
  kL2Bytes = 38,
  kVirtualMemory = 102,
};
enum FunctionAttribute : int { kMaxDynamicShared = 8 };
enum StreamFlag : unsigned { kNonBlocking = 1 };
enum EventFlag : unsigned { kEventDefault = 0, kBlockingSync = 1, kDisableTiming = 2 };
enum HostFlag : unsigned { kPortable = 1 };

// X(member, exported name, parameters)
#define LPQ_DRIVER_FUNCTIONS(X)                                                                                      \
  X(init, cuInit, (unsigned flags))                                                                                  \
  X(driver_version, cuDriverGetVersion, (int* version))                                                              \
  X(error_name, cuGetErrorName, (CUresult code, const char** text))                                                  \
  X(error_string, cuGetErrorString, (CUresult code, const char** text))                                              \
  X(device_count, cuDeviceGetCount, (int* count))                                                                    \
  X(device_get, cuDeviceGet, (CUdevice * device, int ordinal))                                                       \
  X(device_name, cuDeviceGetName, (char* name, int length, CUdevice device))                                         \
  X(device_attribute, cuDeviceGetAttribute, (int* value, int attribute, CUdevice device))                            \
  X(device_memory, cuDeviceTotalMem_v2, (size_t* bytes, CUdevice device))                                            \
  X(primary_retain, cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                                \
  X(context_set, cuCtxSetCurrent, (CUcontext context))                                                               \
  X(can_access_peer, cuDeviceCanAccessPeer, (int* can, CUdevice device, CUdevice peer))                              \
  X(enable_peer, cuCtxEnablePeerAccess, (CUcontext peer, unsigned flags))                                            \
  X(module_load, cuModuleLoadData, (CUmodule * module, const void* image))                                           \
  X(module_unload, cuModuleUnload, (CUmodule module))                                                                \
  X(module_function, cuModuleGetFunction, (CUfunction * function, CUmodule module, const char* name))                \
  X(function_set, cuFuncSetAttribute, (CUfunction function, int attribute, int value))                               \
  X(function_get, cuFuncGetAttribute, (int* value, int attribute, CUfunction function))                              \
  X(occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor,                                                          \
    (int* blocks, CUfunction function, int threads, size_t shared))                                                  \
  X(launch, cuLaunchKernel,                                                                                          \
    (CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,              \
     unsigned shared, CUstream stream, void** arguments, void** extra))                                              \
  X(launch_cooperative, cuLaunchCooperativeKernel,                                                                   \
    (CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,              \
     unsigned shared, CUstream stream, void** arguments))                                                            \
  X(memory_info, cuMemGetInfo_v2, (size_t* free, size_t* total))                                                     \
  X(memory_alloc, cuMemAlloc_v2, (CUdeviceptr * address, size_t bytes))                                              \
  X(memory_free, cuMemFree_v2, (CUdeviceptr address))                                                                \
  X(memory_fill, cuMemsetD8_v2, (CUdeviceptr address, unsigned char value, size_t bytes))                            \
  X(address_reserve, cuMemAddressReserve,                                                                            \
    (CUdeviceptr * address, size_t bytes, size_t alignment, CUdeviceptr wish, unsigned long long flags))             \
  X(address_free, cuMemAddressFree, (CUdeviceptr address, size_t bytes))                                             \
  X(memory_create, cuMemCreate,                                                                                      \
    (CUmemHandle * handle, size_t bytes, const MemoryProperties* kind, unsigned long long flags))                    \
  X(memory_release, cuMemRelease, (CUmemHandle handle))                                                              \
  X(memory_map, cuMemMap,                                                                                            \
    (CUdeviceptr address, size_t bytes, size_t offset, CUmemHandle handle, unsigned long long flags))                \
  X(memory_unmap, cuMemUnmap, (CUdeviceptr address, size_t bytes))                                                   \
  X(memory_access, cuMemSetAccess, (CUdeviceptr address, size_t bytes, const MemoryAccess* who, size_t count))       \
  X(memory_granule, cuMemGetAllocationGranularity, (size_t* bytes, const MemoryProperties* kind, int option))        \
  X(host_alloc, cuMemHostAlloc, (void** address, size_t bytes, unsigned flags))                                      \
  X(host_free, cuMemFreeHost, (void* address))                                                                       \
  X(copy_to_device, cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void* from, size_t bytes, CUstream stream))         \
  X(copy_to_host, cuMemcpyDtoHAsync_v2, (void* to, CUdeviceptr from, size_t bytes, CUstream stream))                 \
  X(copy_on_device, cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))         \
  X(copy_peer, cuMemcpyPeerAsync,                                                                                    \
    (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, CUstream stream)) \
  X(fill_bytes, cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t count, CUstream stream))               \
  X(fill_words, cuMemsetD32Async, (CUdeviceptr to, unsigned value, size_t count, CUstream stream))                   \
  X(stream_create, cuStreamCreate, (CUstream * stream, unsigned flags))                                              \
  X(stream_destroy, cuStreamDestroy_v2, (CUstream stream))                                                           \
  X(stream_wait, cuStreamSynchronize, (CUstream stream))                                                             \
  X(stream_wait_event, cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags))                          \
  X(event_create, cuEventCreate, (CUevent * event, unsigned flags))                                                  \
  X(event_destroy, cuEventDestroy_v2, (CUevent event))                                                               \
  X(event_record, cuEventRecord, (CUevent event, CUstream stream))                                                   \
  X(event_wait, cuEventSynchronize, (CUevent event))                                                                 \
  X(event_query, cuEventQuery, (CUevent event))                                                                      \
  X(event_elapsed, cuEventElapsedTime, (float* milliseconds, CUevent begin, CUevent end))

struct Driver {
#define LPQ_DECLARE(member, name, parameters) CUresult(*member) parameters = nullptr;
  LPQ_DRIVER_FUNCTIONS(LPQ_DECLARE)
#undef LPQ_DECLARE
  int version = 0;  // 1000 * major + 10 * minor of the CUDA version that the driver speaks
};

// The driver, opened and initialised once. Throws Failure("LPQ_CUDA_DRIVER") when there is none, when it is older than
// CUDA 12.0, or when it does not start, Failure("LPQ_CUDA_DEVICE") when it finds no device.
const Driver& driver();

// Throws Failure for anything but success: LPQ_CUDA_MEMORY, LPQ_CUDA_KERNELS (no code for this device), LPQ_CUDA_LOST
// (errors after which the context is unusable) or LPQ_CUDA. `what` is what was being done.
void check(CUresult result, const char* what);
void check(CUresult result, const std::string& what);

}  // namespace lpq::cuda
