// What the host plays of Hopper's own, besides simt.h: barriers that count bytes, boxes of tensors that land late and in any order,
// products whose sums are there only after a wait. Stands in for mma.cuh and wide_ptx.cuh where the wide kernel is tested.
#pragma once
#include <array>
#include <deque>
#include <map>
#include <random>
#include <stdexcept>
#include <vector>

#include "cuda/kernels/gemm_packed.h"
#include "simt.h"


inline float __ldg(const float* from) { return *from; }
inline float2 __ldg(const float2* from) { return *from; }
inline void __threadfence() {}

namespace simt {

// A box's tensor, in the bytes of a TensorMap; strides in bytes, of the outer two dimensions.
struct BoxMap {
  const unsigned char* base;
  uint64_t dims[3], strides[2];
  uint32_t box[3];
  uint16_t element, swizzle;
};
static_assert(sizeof(BoxMap) <= sizeof(lpq::cuda::TensorMap));

struct ByteBarrier {
  int count = 0, pending = 0, phase = 0;
  long long bytes = 0;
  void settle() {
    if (pending == 0 && bytes == 0) phase ^= 1, pending = count;
  }
};
struct Landing {
  BoxMap map;
  uint32_t to, barrier;
  int at[3];
};
struct Product {
  std::array<uint32_t, 16> a;  // of rows lane / 4 and 8 further: words of the four lanes that hold them
  uint64_t b;
  float* sums;
  int tiles;
  bool add, bf, committed;
  uint64_t rows = 0;                             // operand A in shared memory
  void (*other)(const Product&) = nullptr;  // products of other types than halves
};
struct Among {
  int arrived = 0, generation = 0;
};
// All that is under way; cleared before a run.
struct Hopper {
  std::map<uint32_t, ByteBarrier> barriers;
  std::vector<Landing> landings;
  std::map<unsigned, std::deque<Product>> products;  // of threads
  std::map<unsigned, Among> among;                   // of blocks and numbers
  std::mt19937_64 lot{1};
  long long polls = 0;
};
inline Hopper hopper;

inline unsigned own_thread() { return blockIdx.x * 4096 + threadIdx.x; }

inline void land(size_t which) {
  const Landing box = hopper.landings[which];
  hopper.landings.erase(hopper.landings.begin() + static_cast<long>(which));
  const BoxMap& m = box.map;
  uint32_t offset = 0;
  for (uint32_t i2 = 0; i2 < m.box[2]; ++i2)
    for (uint32_t i1 = 0; i1 < m.box[1]; ++i1)
      for (uint32_t i0 = 0; i0 < m.box[0]; ++i0, offset += m.element) {
        const long long c[3] = {box.at[0] + static_cast<long long>(i0), box.at[1] + static_cast<long long>(i1), box.at[2] + static_cast<long long>(i2)};
        uint32_t to = box.to + offset;
        if (m.swizzle) to ^= (to >> 7 & 7) << 4;
        bool inside = true;
        for (int d = 0; d < 3; ++d) inside = inside && c[d] >= 0 && static_cast<uint64_t>(c[d]) < m.dims[d];
        if (inside)
          std::memcpy(shared_memory(to), m.base + static_cast<uint64_t>(c[0]) * m.element + static_cast<uint64_t>(c[1]) * m.strides[0] + static_cast<uint64_t>(c[2]) * m.strides[1], m.element);
        else std::memset(shared_memory(to), 0, m.element);
      }
  ByteBarrier& barrier = hopper.barriers.at(box.barrier);
  barrier.bytes -= offset;
  barrier.settle();
}
// A thread asks again later; meanwhile a box may land.
inline void poll() {
  if (++hopper.polls > 200'000'000) throw std::runtime_error("somebody waits for ever");
  if (!hopper.landings.empty() && hopper.lot() % 4 == 0) land(hopper.lot() % hopper.landings.size());
  give_way();
}

}  // namespace simt

namespace lpq::cuda {

inline uint32_t dynamic_shared_address() { return simt::shared_address(simt::own_shared()); }
inline uint32_t load_shared4(uint32_t address) {
  uint32_t v;
  std::memcpy(&v, simt::shared_memory(address), 4);
  return v;
}
inline void load_shared8(uint32_t& low, uint32_t& high, uint32_t address) { low = load_shared4(address), high = load_shared4(address + 4); }
inline void store_shared4(uint32_t address, uint32_t v) { std::memcpy(simt::shared_memory(address), &v, 4); }
inline unsigned load_acquired(const unsigned* from) {
  simt::poll();
  return *from;
}
inline void fence_barriers() {}
inline void launch_next_operation() {}
inline void await_operation_before() {}
inline void prefetch_map(const void*) {}
inline void written_by_products(float&) {}
template <int N>
void registers_up() {}
template <int N>
void registers_down() {}

// Halves one by one: f(a, b, c) in double precision, rounded once (exactly: a product of two halves and a sum fit).
template <bool BF, class F>
uint32_t of_halves(uint32_t a, uint32_t b, uint32_t c, const F& f) {
  uint32_t result = 0;
  for (int half = 0; half < 2; ++half) {
    const auto number = [&](uint32_t word) -> double {
      const uint16_t bits = static_cast<uint16_t>(word >> 16 * half);
      return BF ? lpq::bf16_to_f32(bits) : lpq::f16_to_f32(bits);
    };
    const double exact = f(number(a), number(b), number(c));
    // To odd in f32 first, so that rounding twice is rounding once.
    float near = static_cast<float>(exact);
    if (std::isfinite(near) && static_cast<double>(near) != exact) {
      const float toward_zero = std::fabs(static_cast<double>(near)) > std::fabs(exact) ? std::nextafter(near, 0.0f) : near;
      near = std::bit_cast<float>(std::bit_cast<uint32_t>(toward_zero) | 1u);
    }
    result |= static_cast<uint32_t>(BF ? lpq::f32_to_bf16(near) : lpq::f32_to_f16(near)) << 16 * half;
  }
  return result;
}
template <bool BF>
uint32_t add_pairs(uint32_t a, uint32_t b) {
  return of_halves<BF>(a, b, 0, [](double x, double y, double) { return x + y; });
}
template <bool BF>
uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  return of_halves<BF>(a, b, 0, [](double x, double y, double) { return x * y; });
}
template <bool BF>
uint32_t fma_pairs(uint32_t a, uint32_t b, uint32_t c) {
  return of_halves<BF>(a, b, c, [](double x, double y, double z) { return x * y + z; });
}
template <bool BF>
uint32_t pair_of(float low, float high) {
  return BF ? lpq::f32_to_bf16(low) | static_cast<uint32_t>(lpq::f32_to_bf16(high)) << 16 : lpq::f32_to_f16(low) | static_cast<uint32_t>(lpq::f32_to_f16(high)) << 16;
}
inline uint32_t lower_twice(uint32_t word) { return (word & 0xffff) | word << 16; }
inline uint32_t upper_twice(uint32_t word) { return word >> 16 | (word & 0xffff0000u); }

inline void barrier_init(uint32_t barrier, int arrivals) { simt::hopper.barriers[barrier] = {arrivals, arrivals, 0, 0}; }
inline void barrier_arrive(uint32_t barrier) {
  simt::ByteBarrier& b = simt::hopper.barriers.at(barrier);
  --b.pending;
  b.settle();
}
inline void barrier_expect(uint32_t barrier, int bytes) {
  simt::hopper.barriers.at(barrier).bytes += bytes;
  barrier_arrive(barrier);
}
inline void barrier_wait(uint32_t barrier, int parity) {
  while (simt::hopper.barriers.at(barrier).phase == parity) simt::poll();
}
inline void barrier_among(int id, int threads) {
  simt::Among& a = simt::hopper.among[blockIdx.x * 16 + static_cast<unsigned>(id)];
  const int generation = a.generation;
  if (++a.arrived == threads) a.arrived = 0, ++a.generation;
  while (a.generation == generation) simt::poll();
}
inline void copy_box(uint32_t to, const void* map, int c0, int c1, int c2, uint32_t barrier) {
  simt::BoxMap box;
  std::memcpy(&box, map, sizeof(box));
  if (to % (box.swizzle ? 1024 : 128) != 0) throw std::runtime_error("a box goes to an address that the bulk engine refuses");
  simt::hopper.landings.push_back({box, to, barrier, {c0, c1, c2}});
}
inline void copy_box_once(uint32_t to, const void* map, int c0, int c1, int c2, uint32_t barrier) { copy_box(to, map, c0, c1, c2, barrier); }

// Bits of the address that name the block stay: 16 bytes a unit, as in the device's descriptors.
inline uint64_t rows_descriptor(uint32_t address) {
  if (address % 1024 != 0) throw std::runtime_error("rows of operand B do not begin at a multiple of 1024 bytes");
  return address >> 4;
}
inline void group_fence() {}
template <bool BF, int T>
void group_multiply(float (&c)[T][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  const simt::Lane* all = simt::gather({{a[0], a[1], a[2], a[3]}});
  simt::Product p{{}, b, &c[0][0], T, add, BF, false};
  const int first = static_cast<int>(threadIdx.x & 28);
  for (int i = 0; i < 4; ++i)
    for (int w = 0; w < 4; ++w) p.a[static_cast<size_t>(4 * i + w)] = all[first + i].words[w];
  simt::hopper.products[simt::own_thread()].push_back(p);
}
template <bool BF, int T>
void multiply_tokens(float (&c)[T][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  group_multiply<BF, T>(c, a, b, add);
}
inline void group_commit() {
  // A group's last product bears the mark.
  auto& queue = simt::hopper.products[simt::own_thread()];
  if (!queue.empty()) queue.back().committed = true;
}
inline const std::array<std::vector<float>, 2>& numbers() {
  static const std::array<std::vector<float>, 2> table = [] {
    std::array<std::vector<float>, 2> t;
    for (int i = 0; i < 65536; ++i) t[0].push_back(lpq::f16_to_f32(static_cast<uint16_t>(i))), t[1].push_back(lpq::bf16_to_f32(static_cast<uint16_t>(i)));
    return t;
  }();
  return table;
}
template <int N>
void group_wait() {
  auto& queue = simt::hopper.products[simt::own_thread()];
  int groups = 0;
  for (const simt::Product& p : queue) groups += p.committed;
  for (; groups > N && !queue.empty(); queue.pop_front()) {
    const simt::Product p = queue.front();
    groups -= p.committed;
    if (p.other) {
      p.other(p);
      continue;
    }
    const std::vector<float>& number = numbers()[p.bf];
    const uint32_t start = static_cast<uint32_t>(p.b << 4);
    for (int tile = 0; tile < p.tiles; ++tile)
      for (int i = 0; i < 4; ++i) {
        const int token = tile * 8 + 2 * static_cast<int>(threadIdx.x & 3) + (i & 1);
        float& c = p.sums[tile * 4 + i];
        double sum = p.add ? c : 0;
        for (int k = 0; k < 16; ++k) {
          const uint32_t word = p.a[static_cast<size_t>(4 * (k % 8 / 2) + (i >> 1) + 2 * (k >> 3))];
          uint32_t from = start + static_cast<uint32_t>(token * 128 + 2 * k);
          from ^= (from >> 7 & 7) << 4;
          uint16_t x;
          std::memcpy(&x, simt::shared_memory(from), 2);
          sum += static_cast<double>(number[static_cast<uint16_t>(word >> 16 * (k & 1))]) * number[x];
        }
        c = static_cast<float>(sum);
      }
  }
}

inline void store_matrices_transposed(uint32_t address, const uint32_t (&r)[4]) {
  const simt::Lane* all = simt::gather({{r[0], r[1], r[2], r[3]}});
  const int lane = static_cast<int>(threadIdx.x & 31), matrix = lane >> 3, column = lane & 7;
  uint16_t out[8];
  for (int row = 0; row < 8; ++row) out[row] = static_cast<uint16_t>(all[4 * row + column / 2].words[matrix] >> 16 * (column & 1));
  std::memcpy(simt::shared_memory(address), out, 16);
}

}  // namespace lpq::cuda
