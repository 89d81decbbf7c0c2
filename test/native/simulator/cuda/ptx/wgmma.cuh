// native/cuda/ptx/wgmma.cuh, simulated: sums are there after the wait for their group.
#pragma once
#include "asynchronous.h"
#include "numbers.h"

namespace lpq::cuda {

inline void wgmma_fence() {}
inline void wgmma_commit() {
  // A group's last product bears the mark.
  auto& queue = simt::asynchronous.products[simt::own_thread()];
  if (!queue.empty()) queue.back().committed = true;
}
template <int N>
void wgmma_wait() {
  auto& queue = simt::asynchronous.products[simt::own_thread()];
  int groups = 0;
  for (const simt::Product& p : queue) groups += p.committed;
  for (; groups > N && !queue.empty(); queue.pop_front()) {
    groups -= queue.front().committed;
    queue.front().work(queue.front());
  }
}

// The address, whose bits that name the block stay, in units of 16 bytes, and the stride of eights of rows.
inline uint64_t wgmma_descriptor(uint32_t address, int stride = 1024) {
  if (address % 1024 != 0) throw std::runtime_error("rows of an operand do not begin at a multiple of 1024 bytes");
  return address >> 4 | static_cast<uint64_t>(stride) << 32;
}
// Rows of k, `block` bytes from 64 of n to the next.
inline uint64_t wgmma_descriptor_rows(uint32_t address, int block) { return wgmma_descriptor(address, block); }
// Of an operand in shared memory: where byte `at` of a row lies, swizzled.
inline uint32_t operand_byte(uint64_t descriptor, int row, int at) {
  const uint32_t from = (static_cast<uint32_t>(descriptor) << 4) +
                        static_cast<uint32_t>((row >> 3) * static_cast<int>(descriptor >> 32) + (row & 7) * 128 + at);
  return from ^ (from >> 7 & 7) << 4;
}
// Of an operand whose rows are k: where number n of row k lies.
inline uint32_t row_byte(uint64_t descriptor, int k, int n) {
  const uint32_t from = (static_cast<uint32_t>(descriptor) << 4) +
                        static_cast<uint32_t>((n >> 6) * static_cast<int>(descriptor >> 32) + k * 128 + (n & 63) * 2);
  return from ^ (from >> 7 & 7) << 4;
}
// Row of A that this lane's sum i belongs to.
inline int row_of_lane(int i) {
  return 16 * static_cast<int>(threadIdx.x >> 5 & 3) + static_cast<int>(threadIdx.x & 31) / 4 + 8 * (i >> 1);
}
// 16 of k: products in double precision, rounded once.
template <bool BF, bool Rows = false>
void multiply_k16(const simt::Product& p) {
  for (int tile = 0; tile < p.tiles; ++tile)
    for (int i = 0; i < 4; ++i) {
      const int token = tile * 8 + 2 * static_cast<int>(threadIdx.x & 3) + (i & 1);
      float& c = static_cast<float*>(p.sums)[tile * 4 + i];
      double sum = p.add ? c : 0;
      for (int k = 0; k < 16; k += 2) {
        uint32_t word, x = 0;
        if (p.rows) std::memcpy(&word, simt::shared_memory(operand_byte(p.rows, row_of_lane(i), 2 * k), 4), 4);
        else word = p.a[static_cast<size_t>(4 * (k % 8 / 2) + (i >> 1) + 2 * (k >> 3))];
        if constexpr (Rows)
          for (int j = 0; j < 2; ++j) {
            uint16_t half;
            std::memcpy(&half, simt::shared_memory(row_byte(p.b, k + j, token), 2), 2);
            x |= static_cast<uint32_t>(half) << 16 * j;
          }
        else std::memcpy(&x, simt::shared_memory(operand_byte(p.b, token, 2 * k), 4), 4);
        sum += simt::number16<BF>(word) * simt::number16<BF>(x) +
               simt::number16<BF>(word >> 16) * simt::number16<BF>(x >> 16);
      }
      c = static_cast<float>(sum);
    }
}
// 32 of k, of int: exact; of float: in double precision, rounded once.
template <class Sum>
void multiply_k32(const simt::Product& p) {
  static const std::vector<double> table = [] {
    std::vector<double> t(256);
    for (int i = 0; i < 256; ++i)
      t[static_cast<size_t>(i)] =
          std::is_same_v<Sum, int> ? static_cast<int8_t>(i) : simt::e4m3(static_cast<uint8_t>(i));
    return t;
  }();
  const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5 & 3);
  for (int tile = 0; tile < p.tiles; ++tile)
    for (int i = 0; i < 4; ++i) {
      const int token = tile * 8 + 2 * (lane & 3) + (i & 1), row = 16 * warp + (lane >> 2) + 8 * (i >> 1);
      Sum& c = static_cast<Sum*>(p.sums)[tile * 4 + i];
      double sum = p.add ? c : 0;
      for (int k = 0; k < 32; ++k) {
        const uint8_t a =
            p.rows ? *simt::shared_memory(operand_byte(p.rows, row, k), 1)
                   : static_cast<uint8_t>(p.a[static_cast<size_t>(4 * (k % 16 / 4) + (i >> 1) + 2 * (k >> 4))] >>
                                          8 * (k & 3));
        sum += table[a] * table[*simt::shared_memory(operand_byte(p.b, token, k), 1)];
      }
      c = static_cast<Sum>(sum);
    }
}
inline void begin_product(const char* instruction, void* sums, int tiles, const uint32_t (&a)[4], uint64_t rows,
                          uint64_t b, bool add, void (*work)(const simt::Product&)) {
  const simt::Lane* all = simt::gather(instruction, {{a[0], a[1], a[2], a[3]}});
  simt::Product p{{}, rows, b, sums, tiles, add, false, work};
  const int first = static_cast<int>(threadIdx.x & 28);
  for (int i = 0; i < 4; ++i)
    for (int w = 0; w < 4; ++w) p.a[static_cast<size_t>(4 * i + w)] = all[first + i].words[w];
  simt::asynchronous.products[simt::own_thread()].push_back(p);
}
template <bool BF, int T>
void wgmma_k16(float (&c)[T][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  begin_product("wgmma k16", c, T, a, 0, b, add, multiply_k16<BF>);
}
template <bool BF, int T>
void wgmma_k16(float (&c)[T][4], uint64_t a, uint64_t b, bool add) {
  begin_product("wgmma k16 of shared memory", c, T, {}, a, b, add, multiply_k16<BF>);
}
template <bool BF, int T>
void wgmma_k16_rows(float (&c)[T][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  begin_product("wgmma k16 of rows", c, T, a, 0, b, add, multiply_k16<BF, true>);
}
template <int T>
void wgmma_k32(int (&c)[T][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  begin_product("wgmma k32", c, T, a, 0, b, add, multiply_k32<int>);
}
template <int T>
void wgmma_k32(float (&c)[T][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  begin_product("wgmma k32", c, T, a, 0, b, add, multiply_k32<float>);
}

}  // namespace lpq::cuda
