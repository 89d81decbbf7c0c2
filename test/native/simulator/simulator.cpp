#include "simulator.h"

#include <sys/mman.h>

#include <random>
#include <string>

#include "coroutine.h"

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
  Coroutine coroutine;
  int block = 0, index = 0;
  const Barrier* waits = nullptr;
  int generation = 0, of_cluster = 0;
  bool done = false;
};
struct Warp {
  Barrier barrier;
  const char* instruction = nullptr;
  Lane lanes[2][32];  // by turns: one set is read while the next is given
};
struct Block {
  std::vector<unsigned char> shared;
  Barrier barrier;
  std::vector<Warp> warps;
};

struct Stacks {
  char* begin;
  size_t bytes;
  explicit Stacks(size_t size)
      : begin(static_cast<char*>(
            mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))),
        bytes(size) {
    if (begin == MAP_FAILED) throw std::runtime_error("no memory for stacks");
  }
  Stacks(const Stacks&) = delete;
  ~Stacks() { munmap(begin, bytes); }
};
struct Device {
  std::vector<Thread> threads;
  std::vector<Block> blocks;
  Barrier cluster;
  Thread* now = nullptr;
  int per_block = 0;
  uint32_t bytes = 0;  // of shared memory a block
  const std::function<void()>* body = nullptr;
  std::string error;  // of the first thread that threw
} device;

void yield() { device.now->coroutine.leave(); }

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
Warp& own_warp() {
  return device.blocks[static_cast<size_t>(device.now->block)].warps[static_cast<size_t>(device.now->index / 32)];
}

void entry() {
  try {
    (*device.body)();
  } catch (const std::exception& error) {
    device.error =
        "block " + std::to_string(blockIdx.x) + ", thread " + std::to_string(threadIdx.x) + ": " + error.what();
  }
  device.now->done = true;
  for (;;) yield();
}

}  // namespace

const Lane* gather(const char* instruction, const Lane& own) {
  Warp& warp = own_warp();
  const int turn = warp.barrier.generation & 1;
  if (warp.barrier.arrived == 0) warp.instruction = instruction;
  else if (std::strcmp(warp.instruction, instruction) != 0)
    throw std::runtime_error(std::string("lanes of a warp are at ") + warp.instruction + " and at " + instruction);
  warp.lanes[turn][device.now->index & 31] = own;
  meet(warp.barrier, 32);
  return warp.lanes[turn];
}
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
  return static_cast<uint32_t>(static_cast<const unsigned char*>(p) - own_shared()) |
         static_cast<uint32_t>(device.now->block) << 20;
}
unsigned own_thread() {
  return static_cast<unsigned>(device.now->block) * 4096 + static_cast<unsigned>(device.now->index);
}
unsigned char* shared_memory(uint32_t address, uint32_t bytes) {
  // Boxes are larger than 16 bytes and have their own rule; all else is aligned to its size.
  if (bytes <= 16 && address % bytes != 0) throw std::runtime_error("a misaligned address in shared memory");
  const uint32_t at = address & 0xfffff;
  if (address >> 20 >= device.blocks.size() || at + bytes > device.bytes)
    throw std::runtime_error("an address outside shared memory");
  return device.blocks[address >> 20].shared.data() + at;
}

void run(int blocks, int threads, int cluster, int bytes, uint64_t seed, const std::function<void()>& body) {
  std::mt19937_64 lot(seed);
  device.body = &body;
  device.per_block = threads, device.bytes = static_cast<uint32_t>(bytes);
  device.error.clear();
  gridDim.x = static_cast<unsigned>(blocks), blockDim.x = static_cast<unsigned>(threads);
  const size_t count = static_cast<size_t>(threads) * static_cast<size_t>(cluster);
  const Stacks stacks(count * kStack);
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
      t.coroutine.prepare(stacks.begin + i * kStack, kStack, entry);
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
          t.coroutine.enter();
          moved = true;
          if (!device.error.empty()) throw std::runtime_error(device.error);
          if (t.done) --left;
        }
      if (!moved) throw std::runtime_error("all threads wait");
    }
    for (const Block& b : device.blocks)
      for (int i = 0; i < kGuard; ++i)
        if (b.shared[static_cast<size_t>(bytes + i)] != 0xff)
          throw std::runtime_error("shared memory is written beyond its end");
  }
}

}  // namespace simt

void __syncthreads() {
  using namespace simt;
  meet(device.blocks[static_cast<size_t>(device.now->block)].barrier, device.per_block);
}
unsigned atomicAdd(unsigned* to, unsigned v) { return *to += v, *to - v; }
