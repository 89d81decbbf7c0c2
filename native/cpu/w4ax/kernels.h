// The inner product of W4Ax, compiled once an instruction set. Integer sums are exact in any order, and the rescaling
// is one fma a block in a stated order, so that all variants give the same bytes.
#pragma once
#include <cstdint>

namespace lpq::w4ax {

// Channels that share an activation scale, a precision and a group of weight scales (COMET, section 3.2: k = 128).
constexpr int64_t kBlock = 128;
// Weight rows that a tile holds.
constexpr int64_t kRows = 4;

// Codes widened to 16 bits: activations x [tokens, K] and weights w [kRows, K]; their scales [tokens, K/128] and
// [kRows, K/128].
struct Tile {
  const int16_t* x;
  const int16_t* w;
  const float* x_scale;
  const float* w_scale;
  int64_t tokens, k;
};

struct Kernels {
  // sums [tokens, kRows]: over blocks b from 0, sum = fma(float(P), x_scale * w_scale, sum), P the block's integer sum.
  void (*multiply)(const Tile& tile, float* sums);
};

const Kernels& kernels_generic();
#if defined(LPQ_X86)
const Kernels& kernels_avx2();
const Kernels& kernels_avx512();
#endif
const Kernels& active_kernels();

}  // namespace lpq::w4ax
