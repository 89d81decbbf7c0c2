// native/cuda/kernels/integer_mma.cuh for device.h. Fragments as the PTX ISA draws them and as test/fixtures/probe-*.json found them.
#pragma once
#include "device.h"

namespace fake {
struct IntegerWarp {
  int* c[32];
};
// m16n8 of K codes of B bits, a register holds 32 / B of consecutive k.
template <int B, int K>
void multiply_integers(const char* what, int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  static IntegerWarp more[32];
  IntegerWarp& own = more[current / 32];
  together(
      what,
      [&](Warp& w, int lane) {
        std::memcpy(w.a[lane], a, 16);
        w.b[lane][0] = b0, w.b[lane][1] = b1, own.c[lane] = c;
      },
      [&](Warp& w) {
        constexpr int kPer = 32 / B;
        const auto number = [](uint32_t word, int i) {
          const int code = static_cast<int>(word >> B * i & ((1u << B) - 1));
          return code >= 1 << (B - 1) ? code - (1 << B) : code;
        };
        int rows[16][K], columns[K][8];
        for (int lane = 0; lane < 32; ++lane)
          for (int i = 0; i < kPer; ++i) {
            for (int reg = 0; reg < 4; ++reg) rows[lane / 4 + 8 * (reg % 2)][kPer * (lane % 4) + i + K / 2 * (reg / 2)] = number(w.a[lane][reg], i);
            for (int reg = 0; reg < 2; ++reg) columns[kPer * (lane % 4) + i + K / 2 * reg][lane / 4] = number(w.b[lane][reg], i);
          }
        for (int lane = 0; lane < 32; ++lane)
          for (int reg = 0; reg < 4; ++reg)
            for (int k = 0; k < K; ++k) own.c[lane][reg] += rows[lane / 4 + 8 * (reg / 2)][k] * columns[k][2 * (lane % 4) + reg % 2];
      });
}
}  // namespace fake

namespace lpq::cuda {
inline void multiply_s8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { fake::multiply_integers<8, 32>("mma.s8", c, a, b0, b1); }
inline void multiply_s4(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { fake::multiply_integers<4, 64>("mma.s4", c, a, b0, b1); }
}  // namespace lpq::cuda
