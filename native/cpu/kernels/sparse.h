// Where a code of 2:4 weights, its place and its scale lie: the closed forms in which the format is published
// (docs/internals/layouts/sparse-marlin.md), one element at a time.
#pragma once
#include "lpq/half.h"
#include "ops/gemm_sparse_marlin.h"

namespace lpq {

struct SparseElement {
  int64_t column;
  uint32_t code;
};

// The weight number `kc` of those that stay of output n, ascending in k.
inline SparseElement sparse_element(const ops::GemmSparseMarlin& p, int64_t n, int64_t kc) {
  const auto* words = reinterpret_cast<const uint32_t*>(p.weights.raw());
  const auto* places = reinterpret_cast<const uint16_t*>(p.metadata.raw());
  const int64_t nt = n / 64, in64 = n % 64 / 8, below = n % 8 / 4, j = n % 4, n_pad = p.n_pad;
  const int64_t kt = kc / 16, kr = kc % 16, lane = 4 * in64 + kr % 8 / 2, quad = kc / 2;
  uint32_t code;
  if (p.bits == 4)
    code = words[kt * 2 * n_pad + nt * 128 + lane * 4 + j] >> (4 * (4 * (kr & 1) + 2 * below + kr / 8)) & 15;
  else code = words[kt * 4 * n_pad + nt * 256 + lane * 8 + 2 * j + below] >> (8 * (2 * (kr & 1) + kr / 8)) & 255;
  const int64_t word = quad / 4, at = word / 2 * 2 * n_pad + nt * 128 + 64 * (n >> 1 & 1) + 8 * in64 + 4 * (n & 1) +
                                      2 * (word % 2) + (n >> 2 & 1);
  return {4 * quad + (places[at] >> (4 * (quad % 4) + 2 * (kc % 2)) & 3), code};
}

inline float sparse_scale(const ops::GemmSparseMarlin& p, int64_t n, int64_t g) {
  constexpr int kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};  // of a feature modulo 8 among the scales of its eight
  return f16_to_f32(p.scales.data<uint16_t>()[p.groups == 1 ? n : g * p.n_pad + n / 8 * 8 + kOrder[n % 8]]);
}

}  // namespace lpq
