// The verifier's own dequantization, for evaluating packed directories and for checking dense fallbacks.
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/verify/emulation.h"
#include "cpu/verify/half.h"
#include "cpu/verify/stream.h"

namespace lpq::verify {
namespace {

float scalar(const Tensor& t, int64_t i) {
  switch (t.dtype) {
    case DType::f32:
    case DType::f16:
    case DType::bf16: return float_at(t, i);
    case DType::i16: return t.data<int16_t>()[i];
    case DType::u8: return t.data<uint8_t>()[i];
    case DType::f8_e8m0: {
      const int e = t.data<uint8_t>()[i];
      return e == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, e - 127);
    }
    case DType::f8_e4m3: return static_cast<float>(CodeType{false, true, 8, 4, 3, 7, "fn"}.value(t.data<uint8_t>()[i]));
    default: throw Failure("LPQ_NATIVE_DTYPE", "scales or zeros of dtype " + std::string(dtype_name(t.dtype)));
  }
}

// W[n][c] = ((decode(q[n][j]) - zero) * scale) * global in f32, then rounded once to w's dtype; c = permutation[j] or
// j, group of column j = g_idx[j] or j div blockK; 0 where
// the mask U8 [N, ceil(K/8)] has a 0 bit. codes U8 [N, ceil(K*b/8)] -> w [N, K].
void dequantize(Call& call, Exec& exec) {
  Arguments a(call, "verify_dequantize");
  const CodeType type = CodeType::read(a);
  const int bits = type.bits;
  const int64_t block_n = a.integer("blockN"), block_k = a.integer("blockK");
  require(block_n > 0 && block_k > 0, "blocks are positive");
  const Tensor& w = a.output("w", {DType::f32, DType::f16, DType::bf16}, {-1, -1});
  const int64_t n = w.dim(0), k = w.dim(1);
  const bool has_group = a.flag("hasGroup");
  const Tensor& codes = a.input("codes", {DType::u8}, {n, ceil_div(k * bits, 8)});
  const Tensor& scales = a.input("scales", {ceil_div(n, block_n), has_group ? -1 : ceil_div(k, block_k)});
  const Tensor* zeros = a.input_if(a.flag("hasZeros"), "zeros", {}, scales.shape);
  const Tensor* group = a.input_if(has_group, "g_idx", {DType::i32}, {k});
  const Tensor* permutation = a.input_if(a.flag("hasPermutation"), "permutation", {DType::i32}, {k});
  const Tensor* global = a.input_if(a.flag("hasGlobal"), "global", {DType::f32}, {-1});
  const Tensor* mask = a.input_if(a.flag("hasMask"), "mask", {DType::u8}, {n, ceil_div(k, 8)});
  const float constant = a.real("zero", 0);
  a.done();
  const int64_t groups = scales.dim(1);
  require(!global || global->dim(0) > 0, "global is empty");
  const float factor = global ? global->data<float>()[0] : 1.0f;
  std::array<float, 256> value{};
  for (uint32_t c = 0; c < (1u << bits); ++c) value[c] = static_cast<float>(type.value(c));
  const uint8_t* in = codes.data<uint8_t>();
  const int32_t *named = group ? group->data<int32_t>() : nullptr,
                *columns = permutation ? checked_order(*permutation) : nullptr;
  for (int64_t j = 0; named && j < k; ++j) require(named[j] >= 0 && named[j] < groups, "g_idx names a group");
  exec.pool.parallel_for(n, 4, [&](int64_t begin, int64_t end, int) {
    std::vector<float> scale(static_cast<size_t>(groups)), zero(static_cast<size_t>(groups), constant);
    std::vector<float> line(static_cast<size_t>(k));
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = row / block_n * groups;
      for (int64_t g = 0; g < groups; ++g) {
        scale[g] = scalar(scales, first + g);
        if (zeros) zero[g] = scalar(*zeros, first + g);
      }
      const uint8_t* stream = in + row * codes.dim(1);
      for (int64_t j = 0, g = 0, left = block_k; j < k; ++j) {
        const int64_t at = named ? named[j] : g;
        float x = (value[stream_get(stream, j, bits)] - zero[at]) * scale[at];
        if (global) x *= factor;
        if (mask && !stream_get(mask->data<uint8_t>() + row * mask->dim(1), j, 1)) x = 0;
        line[columns ? columns[j] : j] = x;
        if (--left == 0) ++g, left = block_k;
      }
      for (int64_t j = 0; j < k; ++j) store_float(w, row * k + j, line[static_cast<size_t>(j)]);
    }
  });
}
LPQ_OP(dequantize, "verify_dequantize");

}  // namespace
}  // namespace lpq::verify
