// native/cuda/ptx/mma.cuh, simulated. Fragments as the PTX ISA draws them and as test/fixtures/probe-*.json found them.
#pragma once
#include "numbers.h"
#include "simulator.h"

namespace lpq::cuda {

template <bool BF>
void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const simt::Lane* all = simt::gather(BF ? "mma.bf16" : "mma.f16", {{a[0], a[1], a[2], a[3], b0, b1}});
  const int lane = static_cast<int>(threadIdx.x & 31), g = lane >> 2, t = lane & 3;
  for (int i = 0; i < 4; ++i) {
    const int row = g + 8 * (i >> 1), column = 2 * t + (i & 1);
    double sum = c[i];
    for (int k = 0; k < 16; ++k) {
      const simt::Lane &from_a = all[4 * (row & 7) + k % 8 / 2], &from_b = all[4 * column + k % 8 / 2];
      sum += simt::number16<BF>(from_a.words[(row >> 3) + 2 * (k >> 3)] >> 16 * (k & 1)) *
             simt::number16<BF>(from_b.words[4 + (k >> 3)] >> 16 * (k & 1));
    }
    c[i] = static_cast<float>(sum);
  }
}

// m16n8 of K codes of B bits; a register holds 32 / B of consecutive k.
template <int B, int K>
void multiply_integers(const char* instruction, int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const simt::Lane* all = simt::gather(instruction, {{a[0], a[1], a[2], a[3], b0, b1}});
  const int lane = static_cast<int>(threadIdx.x & 31), g = lane >> 2, t = lane & 3;
  constexpr int kPer = 32 / B;
  const auto number = [](uint32_t word, int i) { return static_cast<int>(word << (32 - B - B * i)) >> (32 - B); };
  for (int i = 0; i < 4; ++i) {
    const int row = g + 8 * (i >> 1), column = 2 * t + (i & 1);
    for (int k = 0; k < K; ++k) {
      const int of_lane = k % (K / 2) / kPer, half = k / (K / 2);
      c[i] += number(all[4 * (row & 7) + of_lane].words[(row >> 3) + 2 * half], k % kPer) *
              number(all[4 * column + of_lane].words[4 + half], k % kPer);
    }
  }
}
inline void mma_m16n8k32_s8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  multiply_integers<8, 32>("mma.s8", c, a, b0, b1);
}
inline void mma_m16n8k64_s4(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  multiply_integers<4, 64>("mma.s4", c, a, b0, b1);
}

// Operands and metadata: "Matrix fragments for sparse mma.m16n8k32".
template <bool BF, int Selector>
void mma_sp_m16n8k32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[4], uint32_t metadata) {
  const simt::Lane* all =
      simt::gather(Selector ? "mma.sp 1" : "mma.sp 0", {{a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], metadata}});
  const int lane = static_cast<int>(threadIdx.x & 31), g = lane >> 2, t = lane & 3;
  for (int i = 0; i < 4; ++i) {
    const int row = g + 8 * (i >> 1), column = 2 * t + (i & 1);
    double sum = c[i];
    for (int kept = 0; kept < 16; ++kept) {
      const int quad = kept / 2, of_lane = kept % 8 / 2;
      const uint32_t word = all[4 * (row & 7) + 2 * Selector + quad / 4].words[8],
                     places = word >> (16 * (row >> 3) + 4 * (quad % 4)) & 15;
      if ((places & 3) >= places >> 2) throw std::runtime_error("metadata that is not in order");
      const double weight =
          simt::number16<BF>(all[4 * (row & 7) + of_lane].words[(row >> 3) + 2 * (kept >> 3)] >> 16 * (kept & 1));
      const int k = 4 * quad + static_cast<int>(places >> 2 * (kept % 2) & 3);
      if (weight != 0) sum += weight * simt::number16<BF>(all[4 * column + k % 8 / 2].words[4 + k / 8] >> 16 * (k & 1));
    }
    c[i] = static_cast<float>(sum);
  }
}

}  // namespace lpq::cuda
