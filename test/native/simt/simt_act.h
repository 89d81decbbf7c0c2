// What act_ptx.cuh adds to Hopper's instructions, for the host: products of bytes whose rows lie in registers or shared memory, and pairs of
// blocks that write to each other's shared memory.
#pragma once
#include "simt_hopper.h"

inline int __ldg(const int* from) { return *from; }

namespace simt {

inline double e4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  const double size = exponent ? std::ldexp(8 + fraction, exponent - 10) : std::ldexp(fraction, -9);
  return code & 128 ? -size : size;
}
// Sums of int: exact. Of float: 32 products in double precision, rounded once.
template <class Sum>
void multiply_bytes_now(const Product& p) {
  static const std::vector<double> table = [] {
    std::vector<double> t(256);
    for (int i = 0; i < 256; ++i) t[static_cast<size_t>(i)] = std::is_same_v<Sum, int> ? static_cast<int8_t>(i) : e4m3(static_cast<uint8_t>(i));
    return t;
  }();
  const auto byte_of = [](uint32_t address) { return *shared_memory(address ^ (address >> 7 & 7) << 4); };
  const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5 & 3);
  const uint32_t b = static_cast<uint32_t>(p.b) << 4;
  for (int tile = 0; tile < p.tiles; ++tile)
    for (int i = 0; i < 4; ++i) {
      const int token = tile * 8 + 2 * (lane & 3) + (i & 1), row = 16 * warp + (lane >> 2) + 8 * (i >> 1);
      Sum& c = reinterpret_cast<Sum*>(p.sums)[tile * 4 + i];
      double sum = p.add ? c : 0;
      for (int k = 0; k < 32; ++k) {
        uint8_t a;
        if (p.rows) a = byte_of((static_cast<uint32_t>(p.rows) << 4) + static_cast<uint32_t>((row >> 3) * static_cast<int>(p.rows >> 32) + (row & 7) * 128 + k));
        else a = static_cast<uint8_t>(p.a[static_cast<size_t>(4 * (k % 16 / 4) + (i >> 1) + 2 * (k >> 4))] >> 8 * (k & 3));
        sum += table[a] * table[byte_of(b + static_cast<uint32_t>(token * 128 + k))];
      }
      c = static_cast<Sum>(sum);
    }
}

}  // namespace simt

namespace lpq::cuda {

inline uint64_t byte_rows_descriptor(uint32_t address, int stride) {
  if (address % 1024 != 0) throw std::runtime_error("rows of bytes do not begin at a multiple of 1024 bytes");
  return address >> 4 | static_cast<uint64_t>(stride) << 32;
}
template <int T, class Sum>
void multiply_bytes(Sum (&c)[T][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  const simt::Lane* all = simt::gather({{a[0], a[1], a[2], a[3]}});
  simt::Product p{{}, b, reinterpret_cast<float*>(&c[0][0]), T, add, false, false, 0, simt::multiply_bytes_now<Sum>};
  const int first = static_cast<int>(threadIdx.x & 28);
  for (int i = 0; i < 4; ++i)
    for (int w = 0; w < 4; ++w) p.a[static_cast<size_t>(4 * i + w)] = all[first + i].words[w];
  simt::hopper.products[simt::own_thread()].push_back(p);
}
template <int T, class Sum>
void multiply_bytes(Sum (&c)[T][4], uint64_t a, uint64_t b, bool add) {
  simt::warp_barrier();
  simt::hopper.products[simt::own_thread()].push_back({{}, b, reinterpret_cast<float*>(&c[0][0]), T, add, false, false, a, simt::multiply_bytes_now<Sum>});
}
inline void written_by_products(int&) {}
inline void pinned(uint32_t&) {}
inline void barrier_pass(int id, int threads) {
  simt::Among& a = simt::hopper.among[blockIdx.x * 16 + static_cast<unsigned>(id)];
  if (++a.arrived == threads) a.arrived = 0, ++a.generation;
}

// All blocks are one cluster of the host's device; pairs of them are the kernel's.
inline int block_of_cluster() { return static_cast<int>(blockIdx.x & 1); }
inline uint32_t of_pair(uint32_t address, int rank) { return shared_of_block(address, static_cast<int>(blockIdx.x & ~1u) + rank); }
inline void all_of_cluster() { simt::cluster(simt::Cluster::both); }
inline void barrier_arrive_at(uint32_t barrier, int rank) { barrier_arrive(of_pair(barrier, rank)); }
inline void copy_box_to_both(uint32_t to, const void* map, int c0, int c1, int c2, uint32_t barrier) {
  for (int rank = 0; rank < 2; ++rank) copy_box(of_pair(to, rank), map, c0, c1, c2, of_pair(barrier, rank));
}
inline void store_shared16(uint32_t address, uint4 v) { std::memcpy(simt::shared_memory(address), &v, 16); }
inline void shared_seen_by_products() {}

}  // namespace lpq::cuda
