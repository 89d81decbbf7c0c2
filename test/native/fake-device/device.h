// A multiprocessor for the host's compiler: enough of CUDA to run gemm_stripes.cuh's own source, one block at a time, a fiber a
// thread. What a device leaves undefined fails here or spoils the result:
//  - asynchronous copies land when the copying thread waits for them, and their destination holds rubbish from the moment they
//    are issued, so that whoever still reads it, or reads it too early, is found out by wrong results;
//  - copies from outside the tensors, misaligned ones, and reads and writes outside shared memory abort;
//  - a barrier that not all threads of a block reach, or an instruction that not all lanes of a warp reach, aborts;
//  - blocks run from the last to the first, so that a wait for a block after it finds it done, and any other wait aborts.
// Products of mma are exact and added up in double precision, which is as near as a host gets to any order of summation.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "lpq/half.h"

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__
#define __align__(n) __attribute__((aligned(n)))

using std::max;
using std::min;

struct uint2 {
  uint32_t x, y;
};
struct uint4 {
  uint32_t x, y, z, w;
};
struct float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct Index {
  int x = 0;
};
inline Index threadIdx, blockIdx, blockDim, gridDim;

namespace lpq::cuda {
alignas(1024) inline unsigned char shared[232448];
}

namespace fake {

constexpr int kShared = 232448;

[[noreturn]] inline void fail(const char* what) {
  std::printf("FAIL block %d thread %d: %s\n", blockIdx.x, threadIdx.x, what);
  std::fflush(stdout);
  std::_Exit(1);
}

struct Copy {
  uint32_t to;
  unsigned char bytes[16];
};
struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool done = false;
  std::deque<std::vector<Copy>> groups{{}};  // the newest at the back, still open
};
// What the lanes of a warp bring to an instruction that they do together.
struct Warp {
  int arrived = 0;
  long generation = 0;
  const char* what = nullptr;
  uint32_t a[32][4], b[32][2];
  float* c[32];
  uint32_t address[32];
  uint32_t* r[32];
};
struct Block {
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  ucontext_t scheduler;
  int waiting = 0, running = 0;
  long generation = 0;
  long progress = 0;  // of what has no generation of its own
};
inline Block* block = nullptr;
inline int current = 0;
// Global memory that kernels may copy from.
inline std::vector<std::pair<const unsigned char*, size_t>> tensors;

constexpr size_t kStack = 48 << 10;

inline void yield() {
  Thread& self = block->threads[static_cast<size_t>(current)];
  swapcontext(&self.context, &block->scheduler);
}

template <class Bring, class Work>
void together(const char* what, const Bring& bring, const Work& work) {
  Warp& w = block->warps[static_cast<size_t>(current / 32)];
  if (w.arrived == 0) w.what = what;
  else if (w.what != what) fail("the lanes of a warp are at different instructions");
  bring(w, current % 32);
  const long generation = w.generation;
  if (++w.arrived == 32) {
    work(w);
    w.arrived = 0;
    ++w.generation;
  } else {
    while (w.generation == generation) yield();
  }
}

inline const std::function<void()>* body = nullptr;
inline void entry() {
  (*body)();
  block->threads[static_cast<size_t>(current)].done = true;
  --block->running;
  yield();
}

inline void run_block(int index, int blocks, int threads, const std::function<void()>& kernel) {
  Block now;
  now.threads.resize(static_cast<size_t>(threads));
  now.warps.resize(static_cast<size_t>(threads / 32));
  now.running = threads;
  block = &now;
  body = &kernel;
  blockIdx.x = index, gridDim.x = blocks, blockDim.x = threads;
  std::memset(lpq::cuda::shared, 0xff, kShared);
  for (Thread& t : now.threads) {
    t.stack.reset(new char[kStack]);
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack.get();
    t.context.uc_stack.ss_size = kStack;
    t.context.uc_link = nullptr;
    makecontext(&t.context, reinterpret_cast<void (*)()>(entry), 0);
  }
  long idle = 0;
  while (now.running > 0) {
    const long before = now.generation + now.running;
    long progress = now.progress;
    for (const Warp& w : now.warps) progress += w.generation;
    for (current = 0; current < threads; ++current) {
      if (now.threads[static_cast<size_t>(current)].done) continue;
      threadIdx.x = current;
      swapcontext(&now.scheduler, &now.threads[static_cast<size_t>(current)].context);
    }
    for (const Warp& w : now.warps) progress -= w.generation;
    progress -= now.progress;
    idle = progress == 0 && before == now.generation + now.running ? idle + 1 : 0;
    if (idle > 3) fail("threads wait for others that will not come");
  }
}

inline void inside(uint32_t address, uint32_t bytes) {
  if (address % bytes != 0) fail("a misaligned address in shared memory");
  if (address + bytes > kShared) fail("an address outside shared memory");
}

}  // namespace fake

inline void __syncthreads() {
  fake::Block& b = *fake::block;
  const long generation = b.generation;
  if (++b.waiting == static_cast<int>(b.threads.size())) {
    b.waiting = 0;
    ++b.generation;
  } else {
    while (b.generation == generation) fake::yield();
  }
}
inline void __syncwarp() {
  fake::together("syncwarp", [](fake::Warp&, int) {}, [](fake::Warp&) {});
}
// Of warp numbers alone: alike in all lanes.
inline uint32_t __shfl_sync(uint32_t, uint32_t v, int) { return v; }
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= static_cast<uint32_t>(bytes >> (8 * (selector >> 4 * i & 7)) & 255) << 8 * i;
  return out;
}
inline float __uint_as_float(uint32_t v) {
  float f;
  std::memcpy(&f, &v, 4);
  return f;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
void __stcg(T* p, T v) {
  *p = v;
}
inline void __threadfence() {}
inline unsigned atomicAdd(unsigned* p, unsigned v) {
  const unsigned old = *p;
  *p += v;
  return old;
}
