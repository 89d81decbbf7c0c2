// What is under way in the simulated device: copies of cp.async, barriers that count bytes, boxes of TMA, products of
// wgmma.
#pragma once
#include <array>
#include <deque>
#include <map>
#include <random>
#include <string>

#include "simulator.h"

namespace simt {

// A box's tensor, in the bytes of a TensorMap; strides in bytes, of the outer two dimensions.
struct BoxMap {
  const unsigned char* base;
  uint64_t dims[3], strides[2];
  uint32_t box[3];
  uint16_t element, swizzle;
  uint32_t bytes() const { return box[0] * box[1] * box[2] * element; }
};

struct Copy {
  uint32_t to;
  std::array<unsigned char, 16> bytes;
  uint32_t size = 16;
};
struct Copies {
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
};
struct ByteBarrier {
  int count = 0, pending = 0, phase = 0;
  long long bytes = 0;
  void settle() {
    if (pending == 0 && bytes == 0) phase ^= 1, pending = count;
  }
};
struct Box {
  BoxMap map;
  uint32_t to, barrier;
  int at[3];
};
struct Product {
  std::array<uint32_t, 16> a;  // of rows lane / 4 and 8 further: words of the four lanes that hold them
  uint64_t rows, b;            // rows: operand A in shared memory, else 0
  void* sums;
  int tiles;
  bool add, committed;
  void (*work)(const Product&);
};
struct Named {
  int arrived = 0, generation = 0;
};
// Cleared before a run.
struct Asynchronous {
  std::map<unsigned, Copies> copies;  // of threads
  std::map<uint32_t, ByteBarrier> barriers;
  std::vector<Box> boxes;
  std::map<unsigned, std::deque<Product>> products;  // of threads
  std::map<unsigned, Named> named;                   // of blocks and numbers
  std::mt19937_64 lot{1};
  long long polls = 0;
};
inline Asynchronous asynchronous;

inline ByteBarrier& barrier_at(uint32_t address) {
  const auto found = asynchronous.barriers.find(address);
  if (found == asynchronous.barriers.end()) throw std::runtime_error("a barrier that was not made");
  return found->second;
}
inline void arrive(uint32_t address) {
  ByteBarrier& b = barrier_at(address);
  if (--b.pending < 0) throw std::runtime_error("more arrivals than a barrier was made for");
  b.settle();
}

inline void land(size_t which) {
  const Box box = asynchronous.boxes[which];
  asynchronous.boxes.erase(asynchronous.boxes.begin() + static_cast<long>(which));
  const BoxMap& m = box.map;
  uint32_t offset = 0;
  for (uint32_t i2 = 0; i2 < m.box[2]; ++i2)
    for (uint32_t i1 = 0; i1 < m.box[1]; ++i1)
      for (uint32_t i0 = 0; i0 < m.box[0]; ++i0, offset += m.element) {
        const long long c[3] = {box.at[0] + static_cast<long long>(i0), box.at[1] + static_cast<long long>(i1),
                                box.at[2] + static_cast<long long>(i2)};
        uint32_t to = box.to + offset;
        if (m.swizzle) to ^= (to >> 7 & 7) << 4;
        bool inside = true;
        for (int d = 0; d < 3; ++d) inside = inside && c[d] >= 0 && static_cast<uint64_t>(c[d]) < m.dims[d];
        unsigned char* const place = shared_memory(to, m.element);
        if (inside)
          std::memcpy(place,
                      m.base + static_cast<uint64_t>(c[0]) * m.element + static_cast<uint64_t>(c[1]) * m.strides[0] +
                          static_cast<uint64_t>(c[2]) * m.strides[1],
                      m.element);
        else std::memset(place, 0, m.element);
      }
  ByteBarrier& barrier = barrier_at(box.barrier);
  barrier.bytes -= offset;
  barrier.settle();
}
inline void send_box(uint32_t to, const void* map, int c0, int c1, int c2, uint32_t barrier) {
  Box box{{}, to, barrier, {c0, c1, c2}};
  std::memcpy(&box.map, map, sizeof(box.map));
  if (to % (box.map.swizzle ? 1024 : 128) != 0) throw std::runtime_error("a box goes to an address that TMA refuses");
  if (c0 * static_cast<int>(box.map.element) % 16 != 0)
    throw std::runtime_error("a box begins at bytes that TMA refuses");
  std::memset(shared_memory(to, box.map.bytes()), 0xff, box.map.bytes());
  asynchronous.boxes.push_back(box);
}
// A thread asks again later; meanwhile a box may land.
inline void poll() {
  if (++asynchronous.polls > 200'000'000) throw std::runtime_error("somebody waits for ever");
  if (!asynchronous.boxes.empty() && asynchronous.lot() % 4 == 0) land(asynchronous.lot() % asynchronous.boxes.size());
  give_way();
}
// Before a run. After one, `unfinished` says what was not waited for: an empty text where all was.
inline void begin(uint64_t seed) {
  asynchronous = {};
  asynchronous.lot.seed(seed);
}
inline const char* unfinished() {
  if (!asynchronous.boxes.empty()) return "a box is under way at the end";
  for (const auto& [thread, queue] : asynchronous.products)
    if (!queue.empty()) return "products are under way at the end";
  return "";
}

// run(), and what it throws or what was not waited for as a text.
inline std::string try_run(int blocks, int threads, int cluster, int bytes, uint64_t seed,
                           const std::function<void()>& body) {
  try {
    run(blocks, threads, cluster, bytes, seed, body);
  } catch (const std::exception& error) {
    return error.what();
  }
  return unfinished();
}

}  // namespace simt
