// The activation grid of W4Ax: symmetric integer codes of 4 or 8 bits with one fp32 scale a token and block.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cpu/checks.h"

namespace lpq::w4ax {

// 7 and 127: symmetric, so that -x has the code -q, and a pair of INT4 codes never leaves what two's complement holds.
inline float top_code(int bits) { return bits == 4 ? 7.0f : 127.0f; }

// The scale of a block with the largest magnitude `most`; 0 where all codes are 0: the block is 0 or so small that
// 1 / scale is not finite.
inline float block_scale(float most, int bits, float clip) {
  const float scale = most * (clip / top_code(bits));
  return scale < std::numeric_limits<float>::min() ? 0.0f : scale;
}

// Rounded to the nearest integer, ties to even, as a float: |v| <= 127, so that adding 1.5 * 2^23 leaves no fraction.
inline float block_code(float x, float inverse, float top) {
  const float v = std::min(std::max(x * inverse, -top), top);
  return (v + 12582912.0f) - 12582912.0f;
}

// Whole factors i8 [blocks, N'] of a two-level grid (ops/gemm_act.h), 1 where there are none. Throws
// LPQ_NATIVE_ARGUMENT for one of the first n rows that is not of those.
struct RowFactors {
  const int8_t* factors;
  int64_t pitch;

  RowFactors(const Tensor* group_scales, int64_t blocks, int64_t n)
      : factors(group_scales ? reinterpret_cast<const int8_t*>(group_scales->raw()) : nullptr),
        pitch(group_scales ? group_scales->dim(1) : 0) {
    for (int64_t b = 0; factors && b < blocks; ++b)
      for (int64_t r = 0; r < n; ++r)
        require(of(b, r) >= -15 && of(b, r) <= 16, "group_scales has " + std::to_string(of(b, r)) + " for row " +
                                                       std::to_string(r) + " and group " + std::to_string(b) +
                                                       ", not a number from -15 to 16");
  }
  int of(int64_t block, int64_t row) const { return factors ? factors[block * pitch + row] : 1; }
};

// An I32 list of channels, each from 0 to k - 1.
inline void require_order(const Tensor& order, const char* name, int64_t k) {
  require_tensor(order, name, DType::i32, {-1});
  require_aligned(order, name);
  const int32_t* index = order.data<int32_t>();
  for (int64_t j = 0; j < order.dim(0); ++j)
    require(index[j] >= 0 && index[j] < k,
            std::string(name) + " holds " + std::to_string(index[j]) + ", outside 0 to " + std::to_string(k - 1));
}

}  // namespace lpq::w4ax
