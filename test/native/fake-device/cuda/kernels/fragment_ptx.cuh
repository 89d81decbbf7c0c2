// native/cuda/kernels/fragment_ptx.cuh for device.h. Operands and metadata as the PTX ISA draws them ("Matrix fragments for sparse
// mma.m16n8k32") and as test/fixtures/probe-*.json found them with selector 0.
#pragma once
#include "device.h"

struct SparseWarp {
  uint32_t b[32][4], metadata[32];
};

namespace lpq::cuda {

template <bool BF, int Selector>
inline void multiply_sparse(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[4], uint32_t metadata) {
  static SparseWarp more[16];
  SparseWarp& own = more[fake::current / 32];
  fake::together(
      BF ? (Selector ? "mma.sp.bf16 1" : "mma.sp.bf16 0") : Selector ? "mma.sp.f16 1" : "mma.sp.f16 0",
      [&](fake::Warp& w, int lane) {
        std::memcpy(w.a[lane], a, 16);
        std::memcpy(own.b[lane], b, 16);
        own.metadata[lane] = metadata, w.c[lane] = c;
      },
      [&](fake::Warp& w) {
        const auto number = [](uint32_t word, int half) {
          const auto bits = static_cast<uint16_t>(word >> 16 * half);
          return static_cast<double>(BF ? bf16_to_f32(bits) : f16_to_f32(bits));
        };
        double dense[16][32] = {}, tokens[32][8];
        for (int lane = 0; lane < 32; ++lane)
          for (int half = 0; half < 2; ++half) {
            for (int i = 0; i < 4; ++i) tokens[2 * (lane % 4) + half + 8 * i][lane / 4] = number(own.b[lane][i], half);
            for (int i = 0; i < 4; ++i) {
              const int row = lane / 4 + 8 * (i % 2), kept = 2 * (lane % 4) + half + 8 * (i / 2), quad = kept / 2;
              const uint32_t word = own.metadata[lane / 4 * 4 + 2 * Selector + quad / 4];
              const uint32_t places = word >> (16 * (row / 8) + 4 * (quad % 4)) & 15;
              if ((places & 3) >= places >> 2) fake::fail("metadata that is not in order");
              dense[row][4 * quad + (places >> 2 * (kept % 2) & 3)] = number(w.a[lane][i], half);
            }
          }
        for (int lane = 0; lane < 32; ++lane)
          for (int i = 0; i < 4; ++i) {
            double sum = w.c[lane][i];
            for (int k = 0; k < 32; ++k)
              if (dense[lane / 4 + 8 * (i / 2)][k] != 0) sum += dense[lane / 4 + 8 * (i / 2)][k] * tokens[k][2 * (lane % 4) + i % 2];
            w.c[lane][i] = static_cast<float>(sum);
          }
      });
}

inline uint4 load_weights16(const void* from) {
  const auto* at = static_cast<const unsigned char*>(from);
  bool known = false;
  for (const auto& [begin, size] : fake::tensors) known = known || (at >= begin && at + 16 <= begin + size && (at - begin) % 16 == 0);
  if (!known) fake::fail("a load from outside the tensors, or of no whole 16 bytes");
  uint4 v;
  std::memcpy(&v, from, 16);
  return v;
}
inline void store_shared8(uint32_t address, uint32_t a, uint32_t b) {
  fake::inside(address, 8);
  std::memcpy(shared + address, &a, 4);
  std::memcpy(shared + address + 4, &b, 4);
}
inline void store_shared4(uint32_t address, uint32_t v) {
  fake::inside(address, 4);
  std::memcpy(shared + address, &v, 4);
}
inline void store_shared2(uint32_t address, uint16_t v) {
  fake::inside(address, 2);
  std::memcpy(shared + address, &v, 2);
}

}  // namespace lpq::cuda
