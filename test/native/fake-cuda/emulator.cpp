// The layout kernels (native/cuda/layout/pack.cu) run by the host for the fake driver, a block at a time and its
// threads in turns: each runs until it waits for the others. Whatever waits (barriers and shuffles) must do so in all
// threads of the block alike, as these kernels do. What they compute is emulated; time, banks and races are not.
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __shared__

struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct Index {
  unsigned x = 0, y = 0, z = 0;
};

namespace {
Index threadIdx, blockIdx, blockDim, gridDim;

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(1 << 16);
  bool done = false;
};
std::vector<Fiber> fibers;
ucontext_t scheduler;
std::function<void()> body;
std::vector<uint32_t> exchanged;

void enter() {
  body();
  fibers[threadIdx.x].done = true;
}
void wait_for_others() {
  const unsigned mine = threadIdx.x;
  swapcontext(&fibers[mine].context, &scheduler);
  threadIdx.x = mine;
}
void run_block(unsigned threads) {
  fibers.resize(threads);
  exchanged.assign(threads, 0);
  for (Fiber& fiber : fibers) {
    fiber.done = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack = {fiber.stack.data(), 0, fiber.stack.size()};
    fiber.context.uc_link = &scheduler;
    makecontext(&fiber.context, enter, 0);
  }
  for (bool some = true; some;) {
    some = false;
    for (unsigned t = 0; t < threads; ++t) {
      if (fibers[t].done) continue;
      threadIdx.x = t;
      swapcontext(&scheduler, &fibers[t].context);
      some = some || !fibers[t].done;
    }
  }
}

using std::max;
using std::min;
uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
void __syncthreads() { wait_for_others(); }
uint32_t __shfl_xor_sync(uint32_t, uint32_t value, unsigned other) {
  exchanged[threadIdx.x] = value;
  wait_for_others();
  const uint32_t result = exchanged[threadIdx.x ^ other];
  wait_for_others();
  return result;
}
template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
void __stcs(T* to, T value) {
  *to = value;
}
uint32_t __funnelshift_l(uint32_t low, uint32_t high, uint32_t by) {
  return static_cast<uint32_t>(((uint64_t{high} << 32 | low) << (by & 31)) >> 32);
}
uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t by) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> (by & 31));
}
uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) result |= static_cast<uint32_t>(bytes >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return result;
}
uint32_t __vadd4(uint32_t a, uint32_t b) {
  uint32_t result = 0;
  for (int at = 0; at < 32; at += 8) result |= (((a >> at) + (b >> at)) & 255u) << at;
  return result;
}
}  // namespace

#include "cuda/layout/pack.cu"

namespace lpq::cuda {
namespace {
uint4 shared_bytes[(232448 + 15) / 16];
}
}  // namespace lpq::cuda

namespace {

template <class... Args>
void run(void (*kernel)(Args...), unsigned grid, unsigned threads, void** arguments) {
  gridDim.x = grid, blockDim.x = threads;
  body = [&] {
    [&]<size_t... I>(std::index_sequence<I...>) {
      kernel(*static_cast<Args*>(arguments[I])...);
    }(std::index_sequence_for<Args...>{});
  };
  std::memset(lpq::cuda::shared_bytes, 0xa5, sizeof(lpq::cuda::shared_bytes));  // whatever an earlier kernel left
  for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) run_block(threads);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void fake_kernel(const char* name, unsigned grid, unsigned threads,
                                                                   unsigned, void** arguments) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  const std::string kernel = name;
  const auto launch = [&](auto function) { run(function, grid, threads, arguments); };
  using namespace lpq::cuda;
  if (kernel == "lpq_layout_pack") launch(lpq_layout_pack);
  if (kernel == "lpq_layout_pack_runs") launch(lpq_layout_pack_runs);
  if (kernel == "lpq_layout_unpack") launch(lpq_layout_unpack);
  if (kernel == "lpq_layout_check_order") launch(lpq_layout_check_order);
#define LPQ_QUADS(bits) \
  if (kernel == "lpq_layout_pack_quads_" #bits) launch(lpq_layout_pack_quads_##bits);
  LPQ_QUADS(1) LPQ_QUADS(2) LPQ_QUADS(3) LPQ_QUADS(4) LPQ_QUADS(5) LPQ_QUADS(6) LPQ_QUADS(7) LPQ_QUADS(8)
}
