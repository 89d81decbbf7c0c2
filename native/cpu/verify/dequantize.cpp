// The verifier's own dequantization, for evaluating packed directories and for checking dense fallbacks.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cpu/verify/half.h"
#include "cpu/verify/stream.h"

namespace lpq::verify {
namespace {

// The number a bit pattern stands for (types: src/core/quant-type.ts, spec "packed layouts" section 4).
float decode_code(uint32_t code, const Params& p) {
  const int bits = static_cast<int>(p.integer("bits"));
  if (p.text("kind") == "int") {
    const int value = static_cast<int>(code);
    return static_cast<float>(p.integer("signed") && (code >> (bits - 1)) ? value - (1 << bits) : value);
  }
  const int exponent_bits = static_cast<int>(p.integer("exponent")),
            mantissa_bits = static_cast<int>(p.integer("mantissa"));
  const int bias = static_cast<int>(p.integer("bias"));
  const int fraction = static_cast<int>(code & ((1u << mantissa_bits) - 1));
  const int exponent = static_cast<int>((code >> mantissa_bits) & ((1u << exponent_bits) - 1));
  const int top = (1 << exponent_bits) - 1;
  const std::string& special = p.text("special");
  if ((special == "ieee" && exponent == top) ||
      (special == "fn" && exponent == top && fraction == (1 << mantissa_bits) - 1))
    return std::numeric_limits<float>::quiet_NaN();
  const float magnitude =
      exponent == 0 ? std::ldexp(static_cast<float>(fraction), 1 - bias - mantissa_bits)
                    : std::ldexp(static_cast<float>((1 << mantissa_bits) + fraction), exponent - bias - mantissa_bits);
  return (code >> (bits - 1)) ? -magnitude : magnitude;
}

float scalar(const Tensor& t, int64_t i) {
  switch (t.dtype) {
    case DType::f32: return t.data<float>()[i];
    case DType::f16: return half_value(t.data<uint16_t>()[i]);
    case DType::bf16: return bfloat_value(t.data<uint16_t>()[i]);
    case DType::i16: return t.data<int16_t>()[i];
    case DType::u8: return t.data<uint8_t>()[i];
    case DType::f8_e8m0: {
      const int e = t.data<uint8_t>()[i];
      return e == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, e - 127);
    }
    case DType::f8_e4m3: {
      const int c = t.data<uint8_t>()[i], e = (c >> 3) & 15, m = c & 7;
      if (e == 15 && m == 7) return std::numeric_limits<float>::quiet_NaN();
      const float v = e == 0 ? std::ldexp(static_cast<float>(m), -9) : std::ldexp(static_cast<float>(8 + m), e - 10);
      return (c & 128) ? -v : v;
    }
    default: throw Failure("LPQ_NATIVE_DTYPE", "scales or zeros of dtype " + std::string(dtype_name(t.dtype)));
  }
}

// W[n][c] = ((decode(q[n][j]) - zero) * scale) * global in f32, then rounded once to w's dtype; c = permutation[j] or
// j, group of column j = g_idx[j] or j div blockK; 0 where
// the mask U8 [N, ceil(K/8)] has a 0 bit. codes U8 [N, ceil(K*b/8)] -> w [N, K].
void dequantize(Call& call, Exec& exec) {
  const Params& p = call.params;
  const Tensor &codes = call.input(0), &scales = call.input(1), &w = call.output(0);
  size_t next = 2;
  const Tensor* zeros = p.integer("hasZeros", 0) ? &call.input(next++) : nullptr;
  const Tensor* group = p.integer("hasGroup", 0) ? &call.input(next++) : nullptr;
  const Tensor* permutation = p.integer("hasPermutation", 0) ? &call.input(next++) : nullptr;
  const Tensor* global = p.integer("hasGlobal", 0) ? &call.input(next++) : nullptr;
  const Tensor* mask = p.integer("hasMask", 0) ? &call.input(next++) : nullptr;
  const int bits = static_cast<int>(p.integer("bits"));
  const int64_t n = w.dim(0), k = w.dim(1), block_n = p.integer("blockN"), block_k = p.integer("blockK");
  require(block_n > 0 && block_k > 0 && bits >= 1 && bits <= 8, "bits and blocks are positive");
  require(codes.dim(0) == n && codes.dim(1) == ceil_div(k * bits, 8), "codes is U8 [N, ceil(K*bits/8)]");
  const int64_t groups = scales.dim(1);
  require(scales.dim(0) == ceil_div(n, block_n) && (group || groups == ceil_div(k, block_k)),
          "scales is [N/blockN, K/blockK]");
  require(!zeros || zeros->shape == scales.shape, "zeros has the shape of scales");
  require((!group || group->elements() == k) && (!permutation || permutation->elements() == k),
          "g_idx and permutation are I32 [K]");
  require(!mask || (mask->dim(0) == n && mask->dim(1) == ceil_div(k, 8)), "mask is U8 [N, ceil(K/8)]");
  require(w.dtype == DType::f32 || w.dtype == DType::f16 || w.dtype == DType::bf16, "w is f32, f16 or bf16");
  const float constant = static_cast<float>(p.number("zero", 0));
  const bool scaled = global != nullptr;
  const float factor = scaled ? global->data<float>()[0] : 1.0f;
  std::array<float, 256> value{};
  for (uint32_t c = 0; c < (1u << bits); ++c) value[c] = decode_code(c, p);
  const uint8_t* in = codes.data<uint8_t>();
  for (int64_t j = 0; j < k; ++j) {
    require(!group || (group->data<int32_t>()[j] >= 0 && group->data<int32_t>()[j] < groups), "g_idx names a group");
    require(!permutation || (permutation->data<int32_t>()[j] >= 0 && permutation->data<int32_t>()[j] < k),
            "permutation stays inside K");
  }
  const int64_t last = scales.dim(0) * groups;
  exec.pool.parallel_for(n, 4, [&](int64_t begin, int64_t end, int) {
    std::vector<float> scale(static_cast<size_t>(groups)), zero(static_cast<size_t>(groups), constant);
    std::vector<float> line(static_cast<size_t>(k));
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = row / block_n * groups;
      require(first + groups <= last, "scales has a row for every row of codes");
      for (int64_t g = 0; g < groups; ++g) {
        scale[g] = scalar(scales, first + g);
        if (zeros) zero[g] = scalar(*zeros, first + g);
      }
      const uint8_t* stream = in + row * codes.dim(1);
      const int32_t* named = group ? group->data<int32_t>() : nullptr;
      for (int64_t j = 0, g = 0, left = block_k; j < k; ++j) {
        const int64_t at = named ? named[j] : g;
        float x = (value[stream_get(stream, j, bits)] - zero[at]) * scale[at];
        if (scaled) x *= factor;
        if (mask && !stream_get(mask->data<uint8_t>() + row * mask->dim(1), j, 1)) x = 0;
        line[permutation ? permutation->data<int32_t>()[j] : j] = x;
        if (--left == 0) ++g, left = block_k;
      }
      if (w.dtype == DType::f32) {
        std::copy(line.begin(), line.end(), w.data<float>() + row * k);
      } else {
        uint16_t* out = w.data<uint16_t>() + row * k;
        for (int64_t j = 0; j < k; ++j)
          out[j] = w.dtype == DType::f16 ? half_from_float(line[j]) : bfloat_from_float(line[j]);
      }
    }
  });
}
LPQ_OP(dequantize, "verify_dequantize");

}  // namespace
}  // namespace lpq::verify
