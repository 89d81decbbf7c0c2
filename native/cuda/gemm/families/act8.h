// What the launcher tells the kernel of products with activations of 8 bits (act8.cuh).
#pragma once
#include "cuda/gemm/families/packed.h"
#include "cuda/gemm/families/scaled.h"
#include "cuda/gemm/families/w4ax.h"

namespace lpq::cuda {

struct Act8Args {
  void* y;                // [m, n]
  const float* x_scales;  // [m]; unused where blocks have their own
  const float* w_scales;  // [n]; unused where groups have their own
  const float* bias;      // [n] or null
  float* partial;         // a tile a block
  unsigned* counters;     // two a shared item, 0 before and after
  int m, n, k_blocks;
  int stages;  // of the ring of weights
  int store;   // type of y
};

// Boxes: x [m, k] bytes, weights [n, k] bytes or [n / 16, k / 128, 1024] packed, factors i8 or f32 [k / 128, n], scales
// of tokens f32 [k / 128, m].
struct Act8Maps {
  TensorMap x, weights, factors, x_scales;
};

// A stage of weights, 128 of k of so many rows: factors of the group, so many bytes a row, behind the codes.
struct Act8Stage {
  int factors_at, filled, bytes;
  LPQ_HOST_DEVICE constexpr Act8Stage(int rows, bool nibbles, int factor_bytes)
      : factors_at(rows * (nibbles ? 64 : 128)),
        filled(factors_at + rows * factor_bytes),
        bytes((filled + 1023) / 1024 * 1024) {}
};

}  // namespace lpq::cuda
