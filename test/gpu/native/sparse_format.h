// Sparse-MARLIN's bytes by the format's published index formulas (docs/internals/layouts/sparse-marlin.md), one weight
// at a time: sharing nothing with native/. Zero means pruned; values are codes less the middle one.
#pragma once
#include <cstdint>
#include <random>
#include <vector>

namespace lpq::test {

struct SparseBytes {
  std::vector<uint32_t> words;
  std::vector<uint16_t> metadata;
};

// value(n, k) and stays(n, k) of [n_pad][k_pad], two of every four stay.
inline SparseBytes pack_sparse(const std::vector<int16_t>& value, const std::vector<uint8_t>& stays, int64_t n_pad,
                               int64_t k_pad, int bits) {
  SparseBytes out{std::vector<uint32_t>(static_cast<size_t>(k_pad / 32 * n_pad * bits / 2), 0),
                  std::vector<uint16_t>(static_cast<size_t>(k_pad / 32 * 2 * n_pad), 0)};
  for (int64_t n = 0; n < n_pad; ++n)
    for (int64_t quad = 0; quad < k_pad / 4; ++quad) {
      const size_t from = static_cast<size_t>(n * k_pad + 4 * quad);
      int found = 0, places = 0;
      for (int i = 0; i < 4; ++i) {
        if (!stays[from + static_cast<size_t>(i)]) continue;
        const int64_t kc = 2 * quad + found, kt = kc / 16, kr = kc % 16, nt = n / 64, col = n % 64 / 8, blk = n % 8 / 4,
                      j = n % 4;
        const int64_t lane = 4 * col + kr % 8 / 2;
        const auto code = static_cast<uint32_t>(value[from + static_cast<size_t>(i)] + (1 << (bits - 1)));
        if (bits == 4)
          out.words[static_cast<size_t>(kt * 2 * n_pad + nt * 128 + lane * 4 + j)] |=
              code << 4 * (4 * (kr & 1) + 2 * blk + kr / 8);
        else
          out.words[static_cast<size_t>(kt * 4 * n_pad + nt * 256 + lane * 8 + 2 * j + blk)] |=
              code << 8 * (2 * (kr & 1) + kr / 8);
        places |= i << 2 * found++;
      }
      const int64_t c = quad / 4, at = c / 2 * 2 * n_pad + n / 64 * 128 + 64 * (n >> 1 & 1) + 8 * (n % 64 / 8) +
                                       4 * (n & 1) + 2 * (c % 2) + (n >> 2 & 1);
      out.metadata[static_cast<size_t>(at)] =
          static_cast<uint16_t>(out.metadata[static_cast<size_t>(at)] | places << 4 * (quad % 4));
    }
  return out;
}

// The column of a position of grouped scales.
inline int64_t sparse_scale_column(int64_t p) {
  constexpr int kOrder[8] = {0, 4, 1, 5, 2, 6, 3, 7};
  return p / 8 * 8 + kOrder[p % 8];
}

// Random weights of [n][k] in [n_pad][k_pad]: any two of four, the padding the last two.
template <class Engine>
void draw_sparse(Engine& engine, int64_t n, int64_t k, int64_t n_pad, int64_t k_pad, int bits,
                 std::vector<int16_t>& value, std::vector<uint8_t>& stays) {
  static const int kPairs[6][2] = {{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}};
  value.assign(static_cast<size_t>(n_pad * k_pad), 0);
  stays.assign(value.size(), 0);
  for (int64_t row = 0; row < n_pad; ++row)
    for (int64_t quad = 0; quad < k_pad / 4; ++quad) {
      const bool inside = row < n && 4 * quad < k;
      const int* pair = kPairs[inside ? engine() % 6 : 5];
      for (int i = 0; i < 2; ++i) {
        const size_t at = static_cast<size_t>(row * k_pad + 4 * quad + pair[i]);
        stays[at] = 1;
        if (inside)
          value[at] = static_cast<int16_t>(static_cast<int>(engine() % (uint64_t{1} << bits)) - (1 << (bits - 1)));
      }
    }
}

}  // namespace lpq::test
