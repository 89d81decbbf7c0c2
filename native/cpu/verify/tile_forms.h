// Where the codes of a packed tile lie, lane by lane, as the kernels that read them want them. The verifier's own
// tables, written from the PTX ISA's fragments and the formats' descriptions (shared spec "packed layouts", sections 1,
// 3, 4; the lpq "tilus" format): no modes, no strides, nothing of the packer's algebra.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cpu/verify/fragments.h"
#include "lpq/exec.h"

namespace lpq::verify {

struct TileForm {
  int bits = 0, tile_n = 0, tile_k = 0;
  bool n_major = false;  // the tiles of one strip of n stand together
  struct Code {
    int n, k;
  };
  std::vector<Code> codes;     // of a tile
  std::vector<int32_t> at;     // bit m of codes[i] is bit at[i * bits + m] of the tile
  std::vector<bool> together;  // whether the bits of codes[i] are neighbours

  int64_t tile_bits() const { return int64_t{tile_n} * tile_k * bits; }
  int64_t tile_index(int64_t nt, int64_t kt, int64_t n_tiles, int64_t k_tiles) const {
    return n_major ? nt * k_tiles + kt : kt * n_tiles + nt;
  }
  void add(int n, int k, int first_bit) {
    codes.push_back({n, k});
    for (int m = 0; m < bits; ++m) at.push_back(first_bit + m);
    together.push_back(true);
  }
  uint32_t get(const uint8_t* tile, size_t i) const {
    const int32_t* bit = &at[i * static_cast<size_t>(bits)];
    if (together[i]) {
      const int shift = bit[0] & 7;
      uint32_t window = tile[bit[0] >> 3];
      if (shift + bits > 8) window |= static_cast<uint32_t>(tile[(bit[0] >> 3) + 1]) << 8;
      return window >> shift & ((1u << bits) - 1);
    }
    uint32_t code = 0;
    for (int m = 0; m < bits; ++m) code |= static_cast<uint32_t>(tile[bit[m] >> 3] >> (bit[m] & 7) & 1) << m;
    return code;
  }
};

// Forms: marlin, turbomind_b, turbomind_b_experts, turbomind_a, turbomind_sm70, tilus, comet. Throws
// LPQ_NATIVE_ARGUMENT.
TileForm tile_form(const std::string& name, int bits);

// First bit of the scale or zero point of column n and group g, `bits` wide, among [gp, np]. Forms: marlin_scales,
// marlin_zeros, sparse_marlin_scales, turbomind, turbomind_sm70, tilus, comet. Throws LPQ_NATIVE_ARGUMENT.
int64_t parameter_at(const std::string& form, int64_t n, int64_t g, int64_t np, int64_t groups, int bits);

}  // namespace lpq::verify
