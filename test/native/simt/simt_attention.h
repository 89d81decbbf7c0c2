// Stands in for attention/kv_ptx.cuh and kernels/mma.cuh where the host plays an attention kernel. Copies to shared memory are
// made late: when their thread waits for the group they belong to.
#pragma once
#include <array>
#include <deque>
#include <map>
#include <stdexcept>
#include <vector>

#include "simt.h"

#define __global__
#define __launch_bounds__(...)
#define __grid_constant__

namespace simt {

struct Copy {
  uint32_t to;
  const void* from;
  int bytes;
};
struct Copies {
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
};
inline std::map<unsigned, Copies> copies;  // of threads

inline unsigned copying_thread() { return blockIdx.x * 4096 + threadIdx.x; }

}  // namespace simt

namespace lpq::cuda {

inline unsigned char* attention_shared() { return simt::own_shared(); }
// Lanes 8 i to 8 i + 7 give the addresses of the rows of matrix i.
inline std::array<std::array<uint16_t, 64>, 4> matrices_at(uint32_t address) {
  const simt::Lane* all = simt::gather({{address}});
  std::array<std::array<uint16_t, 64>, 4> matrices{};
  for (int row = 0; row < 32; ++row) {
    const uint32_t from = all[row].words[0];
    if (from % 16 != 0) throw std::runtime_error("ldmatrix reads from an address that is no multiple of 16");
    std::memcpy(&matrices[static_cast<size_t>(row / 8)][static_cast<size_t>(row % 8 * 8)], simt::shared_memory(from), 16);
  }
  return matrices;
}
inline void load_matrices(uint32_t (&r)[4], uint32_t address) {
  const auto m = matrices_at(address);
  const size_t lane = threadIdx.x & 31, at = lane / 4 * 8 + lane % 4 * 2;
  for (size_t i = 0; i < 4; ++i) r[i] = m[i][at] | static_cast<uint32_t>(m[i][at + 1]) << 16;
}
inline void load_matrices_turned(uint32_t (&r)[4], uint32_t address) {
  const auto m = matrices_at(address);
  const size_t lane = threadIdx.x & 31, row = lane / 4, column = lane % 4 * 2;
  for (size_t i = 0; i < 4; ++i) r[i] = m[i][column * 8 + row] | static_cast<uint32_t>(m[i][column * 8 + 8 + row]) << 16;
}
inline uint32_t turn_matrix(uint32_t v) {
  const simt::Lane* all = simt::gather({{v}});
  const int lane = static_cast<int>(threadIdx.x & 31), row = lane / 4, column = lane % 4 * 2;
  const auto element = [&](int r, int c) { return all[4 * r + c / 2].words[0] >> 16 * (c & 1) & 0xffffu; };
  return element(column, row) | element(column + 1, row) << 16;
}
inline uint2 load_shared_pair(uint32_t address) {
  uint2 v;
  std::memcpy(&v, simt::shared_memory(address), 8);
  return v;
}
inline void store_shared16(uint32_t address, uint4 v) {
  if (address % 16 != 0) throw std::runtime_error("st.shared of 16 bytes at an address that is no multiple of 16");
  std::memcpy(simt::shared_memory(address), &v, 16);
}
inline uint32_t load_shared_word(uint32_t address) {
  uint32_t v;
  std::memcpy(&v, simt::shared_memory(address), 4);
  return v;
}
inline float low_half(uint32_t v) { return lpq::f16_to_f32(static_cast<uint16_t>(v)); }
inline float high_half(uint32_t v) { return lpq::f16_to_f32(static_cast<uint16_t>(v >> 16)); }
template <int X>
uint32_t two_bytes(uint32_t v) {
  return (v >> 16 * X & 0xffu) | (v >> (16 * X + 8) & 0xffu) << 16;
}
template <class F>
uint32_t half2_map(F&& f) {
  return static_cast<uint32_t>(lpq::f32_to_f16(f(0))) | static_cast<uint32_t>(lpq::f32_to_f16(f(16))) << 16;
}
inline float half_at(uint32_t v, int shift) { return lpq::f16_to_f32(static_cast<uint16_t>(v >> shift)); }
// A product of halves is exact in fp32.
inline uint32_t half2_mul(uint32_t a, uint32_t b) {
  return half2_map([&](int s) { return half_at(a, s) * half_at(b, s); });
}
inline uint32_t half2_of(float low, float high) {
  return half2_map([&](int s) { return s == 0 ? low : high; });
}
inline float half_of(unsigned short bits) { return lpq::f16_to_f32(bits); }
inline unsigned short half_bits(float v) { return lpq::f32_to_f16(v); }
template <bool BF>
float number_of(unsigned short bits) {
  return BF ? lpq::bf16_to_f32(bits) : lpq::f16_to_f32(bits);
}
template <bool BF>
unsigned short bits_of(float v) {
  return BF ? lpq::f32_to_bf16(v) : lpq::f32_to_f16(v);
}
template <bool BF>
uint32_t word_of(float low, float high) {
  return bits_of<BF>(low) | static_cast<uint32_t>(bits_of<BF>(high)) << 16;
}
inline float load_any(const void* p, int type, long long i) {
  const auto* halves = static_cast<const unsigned short*>(p);
  return type == 0 ? static_cast<const float*>(p)[i] : type == 1 ? lpq::f16_to_f32(halves[i]) : lpq::bf16_to_f32(halves[i]);
}
inline float load_fresh(const float* from) { return *from; }
inline float4 load_fresh4(const float* from) { return *reinterpret_cast<const float4*>(from); }
inline bool any_lane(bool v) {
  const simt::Lane* all = simt::gather({{v ? 1u : 0u}});
  return std::any_of(all, all + 32, [](const simt::Lane& lane) { return lane.words[0] != 0; });
}
inline float power_of_two(float x) { return std::exp2(x); }
inline uint32_t half2_min(uint32_t a, uint32_t b) {
  return half2_map([&](int s) {
    const float x = half_at(a, s), y = half_at(b, s);
    return x != x ? x : y != y ? y : x < y || (x == y && std::signbit(x)) ? x : y;
  });
}
inline uint32_t float_bits(float v) { return std::bit_cast<uint32_t>(v); }
inline float reciprocal(float x) { return 1 / x; }
inline float quotient(float a, float b) { return a / b; }
inline float fused(float a, float b, float c) { return std::fma(a, b, c); }

inline void copy16_async(uint32_t to, const void* from, int bytes) {
  if (to % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) throw std::runtime_error("cp.async at an address that is no multiple of 16");
  simt::copies[simt::copying_thread()].open.push_back({to, from, bytes});
}
inline void commit_copies() {
  simt::Copies& own = simt::copies[simt::copying_thread()];
  own.groups.push_back(std::move(own.open));
  own.open.clear();
}
inline void wait_copies(int n) {
  simt::Copies& own = simt::copies[simt::copying_thread()];
  while (own.groups.size() > static_cast<size_t>(n)) {
    for (const simt::Copy& copy : own.groups.front()) {
      std::memset(simt::shared_memory(copy.to), 0, 16);
      std::memcpy(simt::shared_memory(copy.to), copy.from, static_cast<size_t>(copy.bytes));
    }
    own.groups.pop_front();
  }
}
template <int N>
void wait_copies() {
  wait_copies(N);
}

}  // namespace lpq::cuda
