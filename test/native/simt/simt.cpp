#include "simt.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <random>
#include <stdexcept>
#include <vector>

Place threadIdx, blockIdx, gridDim, blockDim;

namespace simt {
namespace {

constexpr size_t kStack = 96 << 10;
constexpr int kGuard = 4096;  // bytes behind a block's shared memory that must stay as they are

// What waits: a number of threads, and how often all of them came.
struct Barrier {
  int arrived = 0, generation = 0;
};
struct Thread {
  ucontext_t context;
  int block = 0, index = 0;
  const Barrier* waits = nullptr;
  int generation = 0, of_cluster = 0;
  bool done = false;
};
struct Warp {
  Barrier barrier;
  Lane lanes[2][32];  // by turns: one set is read while the next is given
};
struct Block {
  std::vector<unsigned char> shared;
  Barrier barrier;
  std::vector<Warp> warps;
};

struct Device {
  ucontext_t main;
  std::vector<Thread> threads;
  std::vector<Block> blocks;
  Barrier cluster;
  Thread* now = nullptr;
  int per_block = 0, first_block = 0;
  const std::function<void()>* body = nullptr;
} device;

void yield() { swapcontext(&device.now->context, &device.main); }

// `count` threads are to come; the last lets all go.
void come(Barrier& barrier, int count) {
  if (++barrier.arrived == count) barrier.arrived = 0, ++barrier.generation;
}
void wait_for(const Barrier& barrier, int generation) {
  if (barrier.generation != generation) return;
  device.now->waits = &barrier, device.now->generation = generation;
  yield();
}
void meet(Barrier& barrier, int count) {
  const int generation = barrier.generation;
  come(barrier, count);
  wait_for(barrier, generation);
}
Warp& own_warp() { return device.blocks[static_cast<size_t>(device.now->block)].warps[static_cast<size_t>(device.now->index / 32)]; }

void entry() {
  (*device.body)();
  device.now->done = true;
  yield();
}

}  // namespace

const Lane* gather(const Lane& own) {
  Warp& warp = own_warp();
  const int turn = warp.barrier.generation & 1;
  warp.lanes[turn][device.now->index & 31] = own;
  meet(warp.barrier, 32);
  return warp.lanes[turn];
}
void warp_barrier() { meet(own_warp().barrier, 32); }
void cluster(Cluster what) {
  const int all = static_cast<int>(device.threads.size());
  if (what == Cluster::arrive) {
    device.now->of_cluster = device.cluster.generation;
    come(device.cluster, all);
  } else if (what == Cluster::wait) {
    wait_for(device.cluster, device.now->of_cluster);
  } else {
    meet(device.cluster, all);
  }
}
void give_way() { yield(); }
unsigned char* own_shared() { return device.blocks[static_cast<size_t>(device.now->block)].shared.data(); }
uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(p) - own_shared()) | static_cast<uint32_t>(device.now->block) << 20;
}
unsigned char* shared_memory(uint32_t address) { return device.blocks.at(address >> 20).shared.data() + (address & 0xfffff); }

void run(int blocks, int threads, int cluster, int bytes, uint64_t seed, const std::function<void()>& body) {
  std::mt19937_64 lot(seed);
  device.body = &body;
  device.per_block = threads;
  gridDim.x = static_cast<unsigned>(blocks), blockDim.x = static_cast<unsigned>(threads);
  const size_t count = static_cast<size_t>(threads) * static_cast<size_t>(cluster);
  void* const stacks = mmap(nullptr, count * kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) throw std::runtime_error("no memory for stacks");
  for (int first = 0; first < blocks; first += cluster) {
    device.threads.assign(count, {});
    device.blocks.assign(static_cast<size_t>(cluster), {});
    device.cluster = {};
    for (Block& b : device.blocks) {
      b.shared.assign(static_cast<size_t>(bytes + kGuard), 0xff);
      b.warps.resize(static_cast<size_t>(threads / 32));
    }
    for (size_t i = 0; i < count; ++i) {
      Thread& t = device.threads[i];
      t.block = static_cast<int>(i) / threads, t.index = static_cast<int>(i) % threads;
      getcontext(&t.context);
      t.context.uc_stack.ss_sp = static_cast<char*>(stacks) + i * kStack;
      t.context.uc_stack.ss_size = kStack;
      t.context.uc_link = nullptr;
      makecontext(&t.context, entry, 0);
    }
    // Warps in an order drawn anew for every round.
    std::vector<size_t> order(count / 32);
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (size_t left = count; left > 0;) {
      std::shuffle(order.begin(), order.end(), lot);
      bool moved = false;
      for (const size_t warp : order)
        for (size_t i = warp * 32; i < warp * 32 + 32; ++i) {
          Thread& t = device.threads[i];
          if (t.done || (t.waits && t.waits->generation == t.generation)) continue;
          t.waits = nullptr;
          device.now = &t;
          threadIdx.x = static_cast<unsigned>(t.index), blockIdx.x = static_cast<unsigned>(first + t.block);
          swapcontext(&device.main, &t.context);
          moved = true;
          if (t.done) --left;
        }
      if (!moved) throw std::runtime_error("all threads wait");
    }
    for (const Block& b : device.blocks)
      for (int i = 0; i < kGuard; ++i)
        if (b.shared[static_cast<size_t>(bytes + i)] != 0xff) throw std::runtime_error("shared memory is written beyond its end");
  }
  munmap(stacks, count * kStack);
}

}  // namespace simt

void __syncthreads() {
  using namespace simt;
  meet(device.blocks[static_cast<size_t>(device.now->block)].barrier, device.per_block);
}
unsigned atomicAdd(unsigned* to, unsigned v) { return *to += v, *to - v; }
