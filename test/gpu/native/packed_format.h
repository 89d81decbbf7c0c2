// The packed format of docs/internals/layouts/tilus.md, code by code: slow, plain, and sharing nothing with native/.
#pragma once
#include <cstdint>
#include <vector>

namespace lpq::test {

struct Place {
  int64_t byte;  // of a little-endian word in the packed weights
  int bit;       // of that word
};

// Bit `m` of the code of (n, k), `bits` a code, k_blocks blocks along K.
inline Place packed_place(int bits, int64_t k_blocks, int64_t n, int64_t k, int m) {
  const int64_t block = n / 32 * k_blocks + k / 128;
  const int np = static_cast<int>(n % 32), kp = static_cast<int>(k % 128);
  const int lane = 4 * (np % 8) + kp % 8 / 2, half = kp % 2, chunk = kp / 32;
  const int pair = 4 * (kp % 32 / 8) + np / 8;
  const int fields = 16 / bits, left = 16 - fields * bits;
  int word = 0, at = 0;
  if (pair < fields * bits) {
    word = pair / fields;
    at = pair % fields * bits + m;
  } else {
    const int top = 16 - left;
    if (bits == 3 || bits == 5) word = m, at = top;
    if (bits == 6) {
      const int y = pair - 12;
      if (m < 4) word = y, at = top + m;
      else word = 4 + y / 2, at = top + 2 * (y % 2) + (m - 4);
    }
    if (bits == 7) {
      const int y = pair - 14;
      if (m < 6) word = 3 * y + m / 2, at = top + m % 2;
      else word = 6, at = top + y;
    }
  }
  const int w = chunk * bits + word;
  return {block * 512 * bits + 512 * (w / 4) + 16 * lane + 4 * (w % 4), 16 * half + at};
}

// codes [n, k] -> bytes.
inline std::vector<uint8_t> pack_weights(const std::vector<uint8_t>& codes, int64_t n, int64_t k, int bits) {
  const int64_t n_blocks = (n + 31) / 32, k_blocks = (k + 127) / 128;
  std::vector<uint8_t> bytes(static_cast<size_t>(n_blocks * k_blocks * 512 * bits), 0);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < k; ++j)
      for (int m = 0; m < bits; ++m) {
        const Place place = packed_place(bits, k_blocks, i, j, m);
        if (codes[static_cast<size_t>(i * k + j)] >> m & 1)
          bytes[static_cast<size_t>(place.byte + place.bit / 8)] |= static_cast<uint8_t>(1 << place.bit % 8);
      }
  return bytes;
}

// [n][groups] -> [ceil(n/32)][groups][32], 0 beyond n.
template <class T>
std::vector<T> pack_scales(const std::vector<T>& values, int64_t n, int64_t groups) {
  std::vector<T> packed(static_cast<size_t>((n + 31) / 32 * 32 * groups), T(0));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t g = 0; g < groups; ++g)
      packed[static_cast<size_t>((i / 32 * groups + g) * 32 + 4 * (i % 8) + i % 32 / 8)] =
          values[static_cast<size_t>(i * groups + g)];
  return packed;
}

}  // namespace lpq::test
