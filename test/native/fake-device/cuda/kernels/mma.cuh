// The instructions of native/cuda/kernels/mma.cuh that gemm_stripes.cuh uses, for device.h. Fragments as the PTX ISA draws them (and as
// test/fixtures/probe-*.json found them).
#pragma once
#include "device.h"

namespace lpq::cuda {

inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(static_cast<const unsigned char*>(p) - shared); }

inline void load_matrices(uint32_t (&r)[4], uint32_t address) {
  fake::inside(address, 16);
  fake::together(
      "ldmatrix",
      [&](fake::Warp& w, int lane) { w.address[lane] = address, w.r[lane] = r; },
      [](fake::Warp& w) {
        for (int lane = 0; lane < 32; ++lane)
          for (int i = 0; i < 4; ++i) std::memcpy(&w.r[lane][i], shared + w.address[8 * i + lane / 4] + 4 * (lane % 4), 4);
      });
}

inline uint4 load_shared16(uint32_t address) {
  fake::inside(address, 16);
  uint4 v;
  std::memcpy(&v, shared + address, 16);
  return v;
}

template <bool BF>
inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  fake::together(
      BF ? "mma.bf16" : "mma.f16",
      [&](fake::Warp& w, int lane) {
        std::memcpy(w.a[lane], a, 16);
        w.b[lane][0] = b0, w.b[lane][1] = b1, w.c[lane] = c;
      },
      [](fake::Warp& w) {
        const auto number = [](uint32_t word, int half) {
          const auto bits = static_cast<uint16_t>(word >> 16 * half);
          return static_cast<double>(BF ? bf16_to_f32(bits) : f16_to_f32(bits));
        };
        double a[16][16], b[16][8];
        for (int lane = 0; lane < 32; ++lane)
          for (int half = 0; half < 2; ++half) {
            for (int i = 0; i < 4; ++i) a[lane / 4 + 8 * (i % 2)][2 * (lane % 4) + half + 8 * (i / 2)] = number(w.a[lane][i], half);
            for (int i = 0; i < 2; ++i) b[2 * (lane % 4) + half + 8 * i][lane / 4] = number(w.b[lane][i], half);
          }
        for (int lane = 0; lane < 32; ++lane)
          for (int i = 0; i < 4; ++i) {
            double sum = w.c[lane][i];
            for (int k = 0; k < 16; ++k) sum += a[lane / 4 + 8 * (i / 2)][k] * b[k][2 * (lane % 4) + i % 2];
            w.c[lane][i] = static_cast<float>(sum);
          }
      });
}

inline void copy_async(uint32_t to, const void* from, int bytes) {
  fake::inside(to, 16);
  fake::Copy copy{to, {}};
  if (bytes > 0) {
    const auto* at = static_cast<const unsigned char*>(from);
    bool known = false;
    for (const auto& [begin, size] : fake::tensors) known = known || (at >= begin && at + 16 <= begin + size && (at - begin) % 16 == 0);
    if (!known) fake::fail("a copy from outside the tensors, or of no whole 16 bytes");
    std::memcpy(copy.bytes, from, static_cast<size_t>(bytes));
  }
  std::memset(shared + to, 0xff, 16);
  fake::block->threads[static_cast<size_t>(fake::current)].groups.back().push_back(copy);
}
inline void copy16_async(uint32_t to, const void* from, int bytes) { copy_async(to, from, bytes); }
inline void commit_copies() { fake::block->threads[static_cast<size_t>(fake::current)].groups.emplace_back(); }
template <int N>
inline void wait_copies() {
  auto& groups = fake::block->threads[static_cast<size_t>(fake::current)].groups;
  while (groups.size() > N + 1) {
    for (const fake::Copy& copy : groups.front()) std::memcpy(shared + copy.to, copy.bytes, 16);
    groups.pop_front();
  }
}

}  // namespace lpq::cuda
