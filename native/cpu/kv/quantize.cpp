// Codes, scales and zeros of keys or values, and what they stand for.
//
//   kv_quantize    x [T,C] f32 (rounded to f16 first) or f16 -> codes U8 [T,C], scales and zeros f16
//   [ceil(T/groupTokens),
//                  C/groupDims]: zero = the smallest of the group, scale = f16((largest - zero) / (2^bits - 1)), code =
//                  (x - zero) / scale rounded to nearest even, at most 2^bits - 1, 0 where the scale is 0; the last
//                  group of tokens may be shorter. fit (0): both ends are fitted_ends(), and codes of what lies beyond
//                  one are that end's. Fails with LPQ_NATIVE_NUMERICS for what f16 cannot hold.
//   kv_dequantize  y f32 [T,C] = fma(code, scale, zero)
#include <algorithm>
#include <cmath>

#include "cpu/kv/grid.h"
#include "ops/arguments.h"

namespace lpq::kv {
namespace {

struct Groups {
  int64_t tokens, width, group_tokens, group_dims, rows, columns;
};

Groups groups_of(Arguments& a, const Tensor& codes, const Tensor& scales, const Tensor& zeros) {
  require_tensor(codes, "codes", DType::u8, {-1, -1});
  Groups g{codes.dim(0), codes.dim(1), a.integer("groupTokens"), a.integer("groupDims"), 0, 0};
  require(g.group_tokens > 0 && g.group_dims > 0 && g.width % g.group_dims == 0,
          "groups must be positive and divide the width");
  g.rows = (g.tokens + g.group_tokens - 1) / g.group_tokens, g.columns = g.width / g.group_dims;
  require_tensor(scales, "scales", DType::f16, {g.rows, g.columns});
  require_tensor(zeros, "zeros", DType::f16, {g.rows, g.columns});
  return g;
}

void quantize(Call& call, Exec& exec) {
  Arguments a(call, "kv_quantize");
  const Tensor &x = a.input("x"), &codes = a.output("codes"), &scales = a.output("scales"), &zeros = a.output("zeros");
  const Groups g = groups_of(a, codes, scales, zeros);
  require_dtype(x, "x", {DType::f32, DType::f16});
  require_shape(x, "x", {g.tokens, g.width});
  const int64_t bits = a.integer("bits");
  const bool fit = a.flag("fit");
  a.done();
  require(bits >= 1 && bits <= 8, "bits is " + std::to_string(bits));
  const float top = static_cast<float>((1 << bits) - 1);
  const bool wide = x.dtype == DType::f32;
  const float* x32 = wide ? x.data<float>() : nullptr;
  const uint16_t* x16 = wide ? nullptr : x.data<uint16_t>();
  uint8_t* code = codes.data<uint8_t>();
  uint16_t *scale = scales.data<uint16_t>(), *zero = zeros.data<uint16_t>();
  const auto value = [&](int64_t t, int64_t c) {
    return finite_half(wide ? f32_to_f16(x32[t * g.width + c]) : x16[t * g.width + c]);
  };
  exec.pool.parallel_for(g.rows * g.columns, rows_grain((fit ? 512 : 8) * g.group_tokens * g.group_dims),
                         [&](int64_t begin, int64_t end, int) {
                           for (int64_t i = begin; i < end; ++i) {
                             const int64_t t0 = i / g.columns * g.group_tokens, c0 = i % g.columns * g.group_dims;
                             const int64_t t1 = std::min(g.tokens, t0 + g.group_tokens), c1 = c0 + g.group_dims;
                             float low = value(t0, c0), high = low;
                             for (int64_t t = t0; t < t1; ++t)
                               for (int64_t c = c0; c < c1; ++c) {
                                 const float v = value(t, c);
                                 low = std::min(low, v), high = std::max(high, v);
                               }
                             if (fit) {
                               const Ends ends = fitted_ends(low, high, top, (t1 - t0) * g.group_dims, [&](int64_t i) {
                                 return value(t0 + i / g.group_dims, c0 + i % g.group_dims);
                               });
                               low = ends.low, high = ends.high;
                             }
                             const Group group(low, high, top);
                             scale[i] = group.scale, zero[i] = group.zero;
                             for (int64_t t = t0; t < t1; ++t)
                               for (int64_t c = c0; c < c1; ++c) code[t * g.width + c] = group.code(value(t, c));
                           }
                         });
}
LPQ_OP(quantize, "kv_quantize");

void dequantize(Call& call, Exec& exec) {
  Arguments a(call, "kv_dequantize");
  const Tensor &codes = a.input("codes"), &scales = a.input("scales"), &zeros = a.input("zeros");
  const Groups g = groups_of(a, codes, scales, zeros);
  const Tensor& y = a.output("y", {DType::f32}, {g.tokens, g.width});
  a.done();
  const uint8_t* code = codes.data<uint8_t>();
  const uint16_t *scale = scales.data<uint16_t>(), *zero = zeros.data<uint16_t>();
  float* out = y.data<float>();
  exec.pool.for_each(g.tokens, rows_grain(4 * g.width), [&](int64_t t) {
    for (int64_t c = 0; c < g.width; ++c) {
      const int64_t at = t / g.group_tokens * g.columns + c / g.group_dims;
      out[t * g.width + c] =
          std::fma(static_cast<float>(code[t * g.width + c]), f16_to_f32(scale[at]), f16_to_f32(zero[at]));
    }
  });
}
LPQ_OP(dequantize, "kv_dequantize");

}  // namespace
}  // namespace lpq::kv
