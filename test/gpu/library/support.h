/* What the programs of this folder that compare numbers have in common: f16, memory of the driver's device. */
#include "checks.h"

static double half_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double size = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
  return exponent == 31 ? NAN : bits & 0x8000 ? -size : size;
}
static uint16_t half_bits(double x) {
  int exponent;
  double size = fabs(x), unit;
  if (size == 0) return 0;
  frexp(size, &exponent);
  unit = ldexp(1, (exponent - 1 < -14 ? -14 : exponent - 1) - 10);
  size = rint(size / unit) * unit;
  frexp(size, &exponent);
  return (uint16_t)((x < 0 ? 0x8000 : 0) |
                    (size < ldexp(1, -14) ? (int)(size * 16777216)
                                          : (exponent + 14) << 10 | ((int)ldexp(size, 11 - exponent) & 1023)));
}

static uint32_t state = 2463534242u;
static uint32_t next_word(void) {
  state ^= state << 13, state ^= state >> 17, state ^= state << 5;
  return state;
}

typedef unsigned long long device_memory;
static void* library;
static void* stream;
static int (*to_device)(device_memory, const void*, size_t, void*), (*to_host)(void*, device_memory, size_t, void*),
    (*wait_for)(void*);

static void* symbol(const char* name) {
  void* found = dlsym(library, name);
  if (!found) printf("the driver has no %s\n", name), exit(2);
  return found;
}

static void copy_in(void* to, const void* from, size_t bytes) {
  if (to_device((device_memory)(uintptr_t)to, from, bytes, stream) || wait_for(stream))
    printf("copying to the device failed\n"), exit(1);
}

static void* device_bytes(const void* host, size_t bytes) {
  int (*alloc)(device_memory*, size_t), (*fill)(device_memory, unsigned char, size_t);
  device_memory memory = 0;
  *(void**)&alloc = symbol("cuMemAlloc_v2");
  *(void**)&fill = symbol("cuMemsetD8_v2");
  if (alloc(&memory, bytes) || fill(memory, 0xff, bytes) || wait_for(NULL))
    printf("no %zu bytes on the device\n", bytes), exit(1);
  if (host) copy_in((void*)(uintptr_t)memory, host, bytes);
  return (void*)(uintptr_t)memory;
}

/* The current context of device 0, a stream, and the driver's copies. Ends the program where there is no GPU. */
static void open_device(void) {
  int (*init)(unsigned), (*device)(int*, int), (*retain)(void**, int), (*select)(void*), (*make)(void**, unsigned);
  void* current;
  int ordinal;
  library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) printf("no GPU: %s\n", dlerror()), exit(2);
  *(void**)&init = symbol("cuInit"), *(void**)&device = symbol("cuDeviceGet"),
  *(void**)&retain = symbol("cuDevicePrimaryCtxRetain");
  *(void**)&select = symbol("cuCtxSetCurrent"), *(void**)&make = symbol("cuStreamCreate"),
  *(void**)&wait_for = symbol("cuStreamSynchronize");
  *(void**)&to_device = symbol("cuMemcpyHtoDAsync_v2"), *(void**)&to_host = symbol("cuMemcpyDtoHAsync_v2");
  if (init(0) || device(&ordinal, 0) || retain(&current, ordinal) || select(current) || make(&stream, 1))
    printf("no GPU\n"), exit(2);
}
