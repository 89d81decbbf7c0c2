// Random weights of every type as gemm_packed takes them, and the numbers that they stand for.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "harness.h"
#include "lpq/quant_type.h"
#include "packed_format.h"

namespace lpq::test {

struct Type {
  std::string name;
  Params params;
  QuantType type;
};

inline std::vector<Type> all_types() {
  std::vector<Type> list;
  const auto add = [&](std::string name, const char* kind, int bits, bool is_signed, int e, int m,
                       const char* special) {
    Params p = params({{"kind", kind},
                       {"bits", double(bits)},
                       {"signed", double(is_signed)},
                       {"exponent", double(e)},
                       {"mantissa", double(m)},
                       {"bias", double(e <= 1 ? 0 : (1 << (e - 1)) - 1)},
                       {"special", special}});
    list.push_back({std::move(name), p, type_of(p)});
  };
  for (int b = 1; b <= 8; ++b) add("u" + std::to_string(b), "int", b, false, 0, 0, "none");
  for (int b = 2; b <= 8; ++b) add("i" + std::to_string(b), "int", b, true, 0, 0, "none");
  for (int b = 3; b <= 8; ++b)
    for (int e = b - 2; e >= 1; --e) {
      const int m = b - 1 - e;
      add("f" + std::to_string(b) + "e" + std::to_string(e) + "m" + std::to_string(m), "float", b, true, e, m,
          b == 8 && e == 4   ? "fn"
          : b == 8 && e == 5 ? "ieee"
                             : "none");
    }
  return list;
}

// The code's number by the definition of docs/internals/numerics.md (bias 2^(e-1)-1, 0 for e = 1), NaN where there is
// none.
inline double number(const QuantType& t, int code) {
  if (t.kind == QuantType::Kind::integer) return t.is_signed && code >> (t.bits - 1) ? code - (1 << t.bits) : code;
  const int m = t.mantissa, power = code >> m & ((1 << t.exponent) - 1), fraction = code & ((1 << m) - 1);
  const int bias = t.exponent == 1 ? 0 : (1 << (t.exponent - 1)) - 1;
  if (t.special == QuantType::Special::ieee && power == (1 << t.exponent) - 1) return NAN;
  if (t.special == QuantType::Special::fn && power == (1 << t.exponent) - 1 && fraction == (1 << m) - 1) return NAN;
  const double size =
      power == 0 ? std::ldexp(fraction, 1 - bias - m) : std::ldexp((1 << m) + fraction, power - bias - m);
  return code >> (t.bits - 1) & 1 ? -size : size;
}

struct Case {
  DType dtype = DType::f16, scale_dtype = DType::f16;
  int64_t m = 1, n = 1, k = 1, group = 128;
  int zeros = 0;  // 0: constant, 1: u8, 2: f16
  double zero = 0;
  bool bias = false, one_hot = false;
  int64_t hot = 0;  // token i has its 1 at k = (hot + i) % K
  Params tiling;
};

struct Weights {
  std::vector<uint8_t> codes;
  std::vector<double> value, scale, zero;  // value: of codes
  Tensor packed, scales, zeros, bias;
};

inline Weights make_weights(const Type& t, const Case& c) {
  Weights w;
  const int64_t groups = c.group == 0 ? 1 : (c.k + c.group - 1) / c.group;
  const int codes = 1 << t.type.bits;
  w.codes.resize(static_cast<size_t>(c.n * c.k));
  w.value.resize(w.codes.size());
  for (size_t i = 0; i < w.codes.size(); ++i) {
    int code;
    do code = static_cast<int>(random()() % static_cast<uint64_t>(codes));
    while (std::isnan(number(t.type, code)));
    w.codes[i] = static_cast<uint8_t>(code);
    w.value[i] = number(t.type, code);
  }
  // Scales that bring the largest value to about 1; those of wide floats would leave f16.
  double top = 0;
  for (int code = 0; code < codes; ++code) {
    const double v = std::fabs(number(t.type, code));
    if (v > top) top = v;
  }
  const double size = std::max(1 / top, 0x1p-12);
  std::vector<uint16_t> scales(static_cast<size_t>(c.n * groups));
  std::vector<uint8_t> zero8(scales.size());
  std::vector<uint16_t> zero16(scales.size());
  w.scale.resize(scales.size());
  w.zero.assign(scales.size(), c.zero);
  for (size_t i = 0; i < scales.size(); ++i) {
    const float s = static_cast<float>(size * (0.5 + (random()() % 1000) / 1000.0));
    scales[i] = c.scale_dtype == DType::f16 ? f32_to_f16(s) : f32_to_bf16(s);
    w.scale[i] = c.scale_dtype == DType::f16 ? f16_to_f32(scales[i]) : bf16_to_f32(scales[i]);
    if (c.zeros == 1)
      w.zero[i] = zero8[i] = i % 5 == 0   ? 255
                             : i % 5 == 1 ? 0
                                          : static_cast<uint8_t>(random()() % static_cast<uint64_t>(codes));
    if (c.zeros == 2)
      w.zero[i] = f16_to_f32(
          zero16[i] = f32_to_f16(static_cast<float>((i % 7 == 0 ? -3.25 : codes) * (random()() % 1000) / 1000.0)));
  }
  const auto tensor = [](DType dtype, std::vector<int64_t> shape, const void* data) {
    Tensor made = allocate(dtype, std::move(shape));
    std::memcpy(made.raw(), data, made.bytes());
    return made;
  };
  const int64_t nb = (c.n + 31) / 32, kb = (c.k + 127) / 128;
  w.packed = tensor(DType::u8, {nb, kb, 512 * t.type.bits}, pack_weights(w.codes, c.n, c.k, t.type.bits).data());
  w.scales = tensor(c.scale_dtype, {nb, groups, 32}, pack_scales(scales, c.n, groups).data());
  if (c.zeros == 1) w.zeros = tensor(DType::u8, {nb, groups, 32}, pack_scales(zero8, c.n, groups).data());
  if (c.zeros == 2) w.zeros = tensor(DType::f16, {nb, groups, 32}, pack_scales(zero16, c.n, groups).data());
  if (c.bias) w.bias = gaussian(c.dtype, {c.n});
  return w;
}

}  // namespace lpq::test
