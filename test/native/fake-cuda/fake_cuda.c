// A libcuda.so.1 without a device, for tests of what lpq does when the real one fails. Device memory is host memory,
// copies are copies, kernels do nothing (but for what keeps a rounding run going, and what FAKE_CUDA_KERNELS runs); everything
// is synchronous and takes a millisecond by the device's clock. The environment says what goes wrong:
//
//   FAKE_CUDA_VERSION    of the driver, as cuDriverGetVersion writes it (12040)
//   FAKE_CUDA_INIT       what cuInit returns (0; 100: no device, 803: the kernel module is of another version)
//   FAKE_CUDA_DEVICES    devices (1)
//   FAKE_CUDA_ARCH       compute capability (90)
//   FAKE_CUDA_MEMORY     bytes that can be allocated (8 GiB)
//   FAKE_CUDA_FAIL       what the launch number FAKE_CUDA_AFTER + 1 ends with, and every call after it
//   FAKE_CUDA_LATE       1: the launch itself succeeds, and the next wait tells of it
//   FAKE_CUDA_KERNELS    a library whose fake_kernel() runs kernels that it knows (emulator.cpp)
//   FAKE_CUDA_TRACE      1: launches are told on stderr, a line a kernel, with "early" where it may start before the one before has ended;
//                        2: with its blocks, threads and bytes of shared memory, too
//
// Signatures and numbers are those of the driver's documentation.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int R;
typedef unsigned long long Address;

static long setting(const char* name, long otherwise) {
  const char* text = getenv(name);
  return text && *text ? atol(text) : otherwise;
}

static long launches = 0;
static R broken = 0;         // what every call returns from now on
static size_t allocated = 0;

static long handle = 0x1000;
static void* next_handle(void) { return (void*)(handle += 16); }

static struct {
  R code;
  const char *name, *text;
} kErrors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
};

R cuGetErrorName(R code, const char** text) {
  for (size_t i = 0; i < sizeof kErrors / sizeof *kErrors; ++i)
    if (kErrors[i].code == code) return *text = kErrors[i].name, 0;
  return 1;
}
R cuGetErrorString(R code, const char** text) {
  for (size_t i = 0; i < sizeof kErrors / sizeof *kErrors; ++i)
    if (kErrors[i].code == code) return *text = kErrors[i].text, 0;
  return 1;
}

R cuInit(unsigned flags) { return (void)flags, (R)setting("FAKE_CUDA_INIT", 0); }
R cuDriverGetVersion(int* version) { return *version = (int)setting("FAKE_CUDA_VERSION", 12040), 0; }
R cuDeviceGetCount(int* count) { return *count = (int)setting("FAKE_CUDA_DEVICES", 1), 0; }
R cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
R cuDeviceGetName(char* name, int length, int device) { return snprintf(name, (size_t)length, "Fake %d", device), 0; }
R cuDeviceGetAttribute(int* value, int attribute, int device) {
  (void)device;
  const int arch = (int)setting("FAKE_CUDA_ARCH", 90);
  switch (attribute) {
    case 8: *value = 49152; break;
    case 16: *value = 4; break;
    case 97: *value = 232448; break;
    case 75: *value = arch / 10; break;
    case 76: *value = arch % 10; break;
    case 38: *value = 4 << 20; break;
    default: *value = 0;
  }
  return 0;
}
static size_t memory(void) { return (size_t)setting("FAKE_CUDA_MEMORY", 8L << 30); }
R cuDeviceTotalMem_v2(size_t* bytes, int device) { return (void)device, *bytes = memory(), 0; }
R cuDevicePrimaryCtxRetain(void** context, int device) { return (void)device, *context = next_handle(), broken; }
static _Thread_local void* current_context;
R cuCtxSetCurrent(void* context) { return current_context = context, 0; }
R cuCtxGetCurrent(void** context) { return *context = current_context, 0; }
R cuCtxGetDevice(int* device) { return *device = 0, broken; }
R cuDeviceCanAccessPeer(int* can, int device, int peer) { return (void)device, (void)peer, *can = 0, 0; }
R cuCtxEnablePeerAccess(void* peer, unsigned flags) { return (void)peer, (void)flags, broken; }
// An image's first word: the only compute capability that it has code for, 0 for all.
R cuModuleLoadData(void** module, const void* image) {
  unsigned only;
  memcpy(&only, image, sizeof only);
  if (only != 0 && only != (unsigned)setting("FAKE_CUDA_ARCH", 90)) return 209;
  return *module = next_handle(), broken;
}
R cuModuleUnload(void* module) { return (void)module, broken; }
R cuModuleGetFunction(void** function, void* module, const char* name) {
  return (void)module, *function = strdup(name), broken;
}
R cuFuncSetAttribute(void* function, int attribute, int value) { return (void)function, (void)attribute, (void)value, broken; }
R cuFuncGetAttribute(int* value, int attribute, void* function) { return (void)function, (void)attribute, *value = 0, broken; }
R cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* function, int threads, size_t shared) {
  return (void)function, (void)threads, (void)shared, *blocks = 1, broken;
}

static R launched(const char* kernel, void** arguments) {
  if (broken) return broken;
  // Sums over a weight that say that nothing is wrong with it: nine doubles behind the last argument.
  if (strcmp(kernel, "lpq_rtn_stats") == 0) memset(*(void**)arguments[3], 0, 72);
  const long fail = setting("FAKE_CUDA_FAIL", 0);
  if (fail == 0 || launches++ < setting("FAKE_CUDA_AFTER", 0)) return 0;
  broken = (R)fail;
  return setting("FAKE_CUDA_LATE", 0) ? 0 : broken;
}
static void emulate(const char* kernel, unsigned grid, unsigned block, unsigned shared, void** arguments) {
  static void (*run)(const char*, unsigned, unsigned, unsigned, void**) = NULL;
  static int looked = 0;
  const char* library = getenv("FAKE_CUDA_KERNELS");
  if (!looked && library) {
    void* opened = dlopen(library, RTLD_NOW);
    if (opened) *(void**)&run = dlsym(opened, "fake_kernel");
    if (!run) fprintf(stderr, "fake CUDA: %s\n", dlerror());
  }
  looked = 1;
  if (run) run(kernel, grid, block, shared, arguments);
}
static void trace(const char* kernel, int early, unsigned blocks, unsigned threads, unsigned shared) {
  const long told = setting("FAKE_CUDA_TRACE", 0);
  if (told) fprintf(stderr, early ? "%s early" : "%s", kernel);
  if (told > 1) fprintf(stderr, " %u %u %u", blocks, threads, shared);
  if (told) fputc('\n', stderr);
}
R cuLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void* stream,
                 void** arguments, void** extra) {
  (void)gy, (void)gz, (void)by, (void)bz, (void)stream, (void)extra;
  trace(f, 0, gx, bx, shared);
  if (!broken) emulate(f, gx, bx, shared, arguments);
  return launched(f, arguments);
}
R cuLaunchCooperativeKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                            void* stream, void** arguments) {
  (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream;
  return launched(f, arguments);
}

// What products of codes ask for besides: clusters, of which one is resident, and tensors described to the bulk engine.
#ifdef FAKE_CUDA_HOPPER
struct launch {
  unsigned grid[3], block[3], shared;
  void* stream;
  const struct {
    int id, padding;
    unsigned value[16];
  } *attributes;
  unsigned count;
};
R cuLaunchKernelEx(const struct launch* config, void* f, void** arguments, void** extra) {
  (void)extra;
  enum { kProgrammaticSerialization = 6 };
  int early = 0;
  for (unsigned i = 0; i < config->count; ++i) early |= config->attributes[i].id == kProgrammaticSerialization && config->attributes[i].value[0];
  trace(f, early, config->grid[0], config->block[0], config->shared);
  if (!broken) emulate(f, config->grid[0], config->block[0], config->shared, arguments);
  return launched(f, arguments);
}
R cuOccupancyMaxActiveClusters(int* count, void* function, const void* config) {
  return (void)function, (void)config, *count = 1, broken;
}
R cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* address, const unsigned long* dims, const unsigned long* strides,
                         const unsigned* box, const unsigned* steps, int interleave, int swizzle, int promotion, int fill) {
  (void)interleave, (void)promotion, (void)fill, (void)steps;
  if ((Address)address % 16) return 1;
  for (unsigned i = 0; i < rank; ++i)
    if (dims[i] == 0 || box[i] == 0 || box[i] > 256) return 1;
  for (unsigned i = 0; i + 1 < rank; ++i)
    if (strides[i] % 16) return 1;
  // As the simulated bulk engine reads it (simt::BoxMap).
  if (rank == 3) {
    struct box_map {
      void* base;
      unsigned long dims[3], strides[2];
      unsigned box[3];
      unsigned short element, swizzle;
    } described = {address, {dims[0], dims[1], dims[2]}, {strides[0], strides[1]}, {box[0], box[1], box[2]}, 0, 0};
    described.element = (unsigned short)(type == 0 ? 1 : type == 1 ? 2 : type == 2 ? 4 : 8);
    described.swizzle = swizzle != 0;
    memcpy(map, &described, sizeof described);
  }
  return broken;
}
#endif

R cuMemGetInfo_v2(size_t* free_bytes, size_t* total) { return *total = memory(), *free_bytes = *total - allocated, broken; }
// No virtual memory management: attribute 102 is 0, and device memory comes from cuMemAlloc.
enum { kNotSupported = 801 };
R cuMemAddressReserve(Address* at, size_t bytes, size_t align, Address wish, unsigned long long flags) {
  return (void)at, (void)bytes, (void)align, (void)wish, (void)flags, kNotSupported;
}
R cuMemAddressFree(Address at, size_t bytes) { return (void)at, (void)bytes, kNotSupported; }
R cuMemCreate(unsigned long long* memory, size_t bytes, const void* kind, unsigned long long flags) {
  return (void)memory, (void)bytes, (void)kind, (void)flags, kNotSupported;
}
R cuMemRelease(unsigned long long memory) { return (void)memory, kNotSupported; }
R cuMemMap(Address at, size_t bytes, size_t offset, unsigned long long memory, unsigned long long flags) {
  return (void)at, (void)bytes, (void)offset, (void)memory, (void)flags, kNotSupported;
}
R cuMemUnmap(Address at, size_t bytes) { return (void)at, (void)bytes, kNotSupported; }
R cuMemSetAccess(Address at, size_t bytes, const void* who, size_t count) {
  return (void)at, (void)bytes, (void)who, (void)count, kNotSupported;
}
R cuMemGetAllocationGranularity(size_t* bytes, const void* kind, int option) {
  return (void)bytes, (void)kind, (void)option, kNotSupported;
}
R cuMemAlloc_v2(Address* address, size_t bytes) {
  if (broken) return broken;
  if (allocated + bytes > memory()) return 2;
  // The size lies in front, 512 bytes of it, for the driver's alignment.
  char* block = aligned_alloc(512, (bytes + 1023) / 512 * 512);
  if (!block) return 2;
  memset(block + 512, 0, bytes);
  memcpy(block, &bytes, sizeof bytes);
  allocated += bytes;
  *address = (Address)(block + 512);
  return 0;
}
R cuMemsetD8_v2(Address address, unsigned char value, size_t bytes) {
  if (!broken) memset((char*)address, value, bytes);
  return broken;
}
R cuMemFree_v2(Address address) {
  if (broken || address == 0) return broken;
  size_t bytes;
  memcpy(&bytes, (char*)address - 512, sizeof bytes);
  allocated -= bytes;
  free((char*)address - 512);
  return 0;
}
R cuMemHostAlloc(void** address, size_t bytes, unsigned flags) { return (void)flags, (*address = malloc(bytes)) ? broken : 2; }
R cuMemFreeHost(void* address) { return free(address), broken; }
R cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, void* stream) {
  return (void)stream, broken ? 0 : (memcpy((void*)to, from, bytes), 0), broken;
}
R cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void* stream) {
  return (void)stream, broken ? 0 : (memcpy(to, (void*)from, bytes), 0), broken;
}
R cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void* stream) {
  return (void)stream, broken ? 0 : (memmove((void*)to, (void*)from, bytes), 0), broken;
}
R cuMemcpyPeerAsync(Address to, void* to_context, Address from, void* from_context, size_t bytes, void* stream) {
  return (void)to_context, (void)from_context, cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
}
// What programs in C copy with, which have no stream of the library's to wait for.
R cuMemcpyHtoD_v2(Address to, const void* from, size_t bytes) { return cuMemcpyHtoDAsync_v2(to, from, bytes, 0); }
R cuMemcpyDtoH_v2(void* to, Address from, size_t bytes) { return cuMemcpyDtoHAsync_v2(to, from, bytes, 0); }
R cuMemsetD8Async(Address to, unsigned char value, size_t count, void* stream) {
  return (void)stream, broken ? 0 : (memset((void*)to, value, count), 0), broken;
}
R cuMemsetD32Async(Address to, unsigned value, size_t count, void* stream) {
  (void)stream;
  if (!broken)
    for (size_t i = 0; i < count; ++i) ((unsigned*)to)[i] = value;
  return broken;
}
R cuStreamCreate(void** stream, unsigned flags) { return (void)flags, *stream = next_handle(), broken; }
R cuStreamDestroy_v2(void* stream) { return (void)stream, broken; }
R cuStreamSynchronize(void* stream) { return (void)stream, broken; }
R cuStreamWaitEvent(void* stream, void* event, unsigned flags) { return (void)stream, (void)event, (void)flags, broken; }
R cuEventCreate(void** event, unsigned flags) { return (void)flags, *event = next_handle(), broken; }
R cuEventDestroy_v2(void* event) { return (void)event, broken; }
R cuEventRecord(void* event, void* stream) { return (void)event, (void)stream, broken; }
R cuEventSynchronize(void* event) { return (void)event, broken; }
R cuEventQuery(void* event) { return (void)event, broken; }
R cuEventElapsedTime(float* milliseconds, void* begin, void* end) { return (void)begin, (void)end, *milliseconds = 1, broken; }

// Recording a graph is launching at once, replaying it nothing.
R cuStreamBeginCapture_v2(void* stream, int mode) { return (void)stream, (void)mode, broken; }
R cuStreamEndCapture(void* stream, void** graph) { return (void)stream, *graph = next_handle(), broken; }
R cuGraphInstantiateWithFlags(void** run, void* graph, unsigned long long flags) {
  return (void)graph, (void)flags, *run = next_handle(), broken;
}
R cuGraphLaunch(void* run, void* stream) { return (void)run, (void)stream, broken; }
R cuGraphExecDestroy(void* run) { return (void)run, broken; }
R cuGraphDestroy(void* graph) { return (void)graph, broken; }
R cuDeviceGetPCIBusId(char* text, int length, int device) { return snprintf(text, (size_t)length, "0000:%02x:00.0", device), 0; }
