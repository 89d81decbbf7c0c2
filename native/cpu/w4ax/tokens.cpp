// quantize_tokens, widen_tokens, scale_tokens, gemm_act: activations of 8 bits with one scale a token.
#include <atomic>
#include <vector>

#include "cpu/w4ax/codes.h"
#include "lpq/half.h"
#include "ops/gemm_act.h"
#include "ops/w4ax.h"

namespace lpq::w4ax {
namespace {

float load(const Tensor& x, int64_t i) {
  if (x.dtype == DType::f16) return f16_to_f32(x.data<uint16_t>()[i]);
  if (x.dtype == DType::bf16) return bf16_to_f32(x.data<uint16_t>()[i]);
  return x.data<float>()[i];
}

// |v| <= 448 as e4m3, to nearest even.
uint8_t to_e4m3(float v) {
  const uint8_t sign = std::signbit(v) ? 0x80 : 0;
  const float size = std::fabs(v);
  if (size == 0) return sign;
  int exponent;
  std::frexp(size, &exponent);  // size = f 2^exponent, f in [1/2, 1)
  // Of a binade [2^(e-1), 2^e) numbers are multiples of 2^(e-4), subnormal ones of 2^-9.
  const int step = std::max(exponent - 4, -9);
  const int count = static_cast<int>(std::nearbyint(std::ldexp(size, -step)));
  // Codes of magnitudes are consecutive: count from 8 to 16 in the binade above step -9.
  return static_cast<uint8_t>(sign | (step == -9 && count < 16 ? count : (step + 9) * 8 + count));
}
float from_e4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  const float size = exponent ? std::ldexp(static_cast<float>(8 + fraction), exponent - 10)
                              : std::ldexp(static_cast<float>(fraction), -9);
  return code & 128 ? -size : size;
}

void quantize_tokens(Call& call, Exec& exec) {
  const ops::QuantizeTokens p(call);
  const Tensor &x = p.x, &codes = p.codes;
  require_aligned(x, "x");
  const int64_t rows = x.dim(0), k = x.dim(1);
  const bool integer = codes.dtype == DType::i8;
  const float top = integer ? 127.0f : 448.0f;
  uint8_t* to = reinterpret_cast<uint8_t*>(codes.raw());
  float* scale = p.scales.data<float>();
  std::atomic<bool> bad{false};
  exec.pool.for_each(rows, rows_grain(8 * k), [&](int64_t t) {
    float most = 0;
    for (int64_t i = 0; i < k; ++i) {
      const float size = std::fabs(load(x, t * k + i));
      if (!(size <= std::numeric_limits<float>::max())) bad = true;
      most = std::max(most, size);
    }
    float s = most * (1.0f / top);
    if (!(s >= std::numeric_limits<float>::min() && s <= std::numeric_limits<float>::max())) s = 0;
    const float inverse = s > 0 ? 1.0f / s : 0.0f;
    scale[t] = s;
    for (int64_t i = 0; i < k; ++i) {
      const float v = load(x, t * k + i);
      if (!(std::fabs(v) <= std::numeric_limits<float>::max())) to[t * k + i] = 0;
      else if (integer) to[t * k + i] = static_cast<uint8_t>(static_cast<int8_t>(block_code(v, inverse, top)));
      else to[t * k + i] = to_e4m3(std::min(std::max(v * inverse, -top), top));
    }
  });
  if (bad) throw Failure("LPQ_NATIVE_NUMERICS", "activations hold NaN or infinity");
}

void store(const Tensor& y, int64_t i, float v) {
  if (y.dtype == DType::f32) y.data<float>()[i] = v;
  else y.data<uint16_t>()[i] = y.dtype == DType::f16 ? f32_to_f16(v) : f32_to_bf16(v);
}

void widen_tokens(Call& call, Exec& exec) {
  const ops::WidenTokens p(call);
  const int64_t rows = p.codes.dim(0), k = p.codes.dim(1);
  const uint8_t* codes = reinterpret_cast<const uint8_t*>(p.codes.raw());
  exec.pool.for_each(rows, rows_grain(4 * k), [&](int64_t t) {
    const float scale = p.scales.data<float>()[t];
    const int e = scale > 0 ? std::clamp(std::ilogb(scale), p.least, p.most) : 0;
    p.rest.data<float>()[t] = std::ldexp(scale, -e);
    const float power = std::ldexp(1.0f, e);
    for (int64_t i = t * k; i < (t + 1) * k; ++i)
      store(p.x, i, power * (p.integers ? static_cast<float>(static_cast<int8_t>(codes[i])) : from_e4m3(codes[i])));
  });
}

void scale_tokens(Call& call, Exec& exec) {
  const ops::ScaleTokens p(call);
  const int64_t n = p.y.dim(1);
  exec.pool.for_each(p.y.dim(0), rows_grain(2 * n), [&](int64_t t) {
    const float by = p.rest.data<float>()[t];
    for (int64_t i = 0; i < n; ++i)
      store(p.y, t * n + i, load(p.y, t * n + i) * by + (p.bias ? load(*p.bias, i) : 0.0f));
  });
}

// The nibble of row n, column k of the blocks [ceil(N/16), K/128, 1024] of 4-bit weights
// (docs/internals/layouts/comet.md), as a number.
int nibble(const uint8_t* words, int64_t k_blocks, int64_t n, int64_t k) {
  const int64_t chunk = k % 128 / 32, lane = 4 * (n % 8) + k % 16 / 4;
  const int64_t byte = chunk / 2 * 512 + lane * 16 + (chunk % 2 * 2 + n % 16 / 8) * 4 + k % 4;
  const int code = words[(n / 16 * k_blocks + k / 128) * 1024 + byte] >> 4 * (k % 32 / 16) & 15;
  return code >= 8 ? code - 16 : code;
}

void gemm_act(Call& call, Exec& exec) {
  const ops::GemmAct p(call);
  const Tensor& y = p.y;
  const int64_t m = p.m, n = p.n, k = p.k, k_blocks = p.k_blocks;
  const bool packed = p.packed, integer = p.integers, of_groups = p.of_groups;
  const RowFactors factors(p.group_scales, k_blocks, n);
  const float* bias = p.bias ? p.bias->data<float>() : nullptr;
  const uint8_t *codes = reinterpret_cast<const uint8_t*>(p.x.raw()),
                *weights = reinterpret_cast<const uint8_t*>(p.w.raw());
  const float *sx = p.x_scales.data<float>(), *sw = p.w_scales.data<float>();
  const int64_t pitch = of_groups ? p.w_scales.dim(1) : 0;
  float values[256];
  for (int i = 0; i < 256; ++i)
    values[i] = integer ? static_cast<float>(static_cast<int8_t>(i)) : from_e4m3(static_cast<uint8_t>(i));
  exec.pool.parallel_for(n, std::max<int64_t>(1, rows_grain(m * k)), [&](int64_t begin, int64_t end, int) {
    std::vector<int8_t> row(static_cast<size_t>(k));
    for (int64_t r = begin; r < end; ++r) {
      if (packed)
        for (int64_t i = 0; i < k; ++i)
          row[static_cast<size_t>(i)] = static_cast<int8_t>(nibble(weights, k_blocks, r, i) * factors.of(i / 128, r));
      else std::copy_n(reinterpret_cast<const int8_t*>(weights) + r * k, k, row.begin());
      for (int64_t t = 0; t < m; ++t) {
        const uint8_t* const from = codes + t * k;
        float sum = 0;
        if (integer && !of_groups) {
          int32_t whole = 0;
          for (int64_t i = 0; i < k; ++i) whole += static_cast<int8_t>(from[i]) * row[static_cast<size_t>(i)];
          sum = static_cast<float>(whole);
        } else {
          for (int64_t b = 0; b < k_blocks; ++b) {
            const int64_t last = std::min(k, b * 128 + 128);
            if (of_groups) {
              // Of s8 an exact integer; of e4m3 multiples of 2^-9 below 2^19, exact in double.
              double part = 0;
              for (int64_t i = b * 128; i < last; ++i)
                part += static_cast<double>(values[from[i]]) * row[static_cast<size_t>(i)];
              sum = std::fma(static_cast<float>(part), sw[b * pitch + r], sum);
            } else {
              // Products of e4m3 are multiples of 2^-18 below 2^18: 128 of them add up exactly in double.
              double part = 0;
              for (int64_t i = b * 128; i < last; ++i)
                part +=
                    static_cast<double>(values[from[i]]) * values[static_cast<uint8_t>(row[static_cast<size_t>(i)])];
              sum += static_cast<float>(part);
            }
          }
        }
        const float out = sum * (of_groups ? sx[t] : sx[t] * sw[r]) + (bias ? bias[r] : 0.0f);
        if (y.dtype == DType::f32) y.data<float>()[t * n + r] = out;
        else y.data<uint16_t>()[t * n + r] = y.dtype == DType::f16 ? f32_to_f16(out) : f32_to_bf16(out);
      }
    }
  });
}

}  // namespace
LPQ_OP(quantize_tokens, "quantize_tokens");
LPQ_OP(widen_tokens, "widen_tokens");
LPQ_OP(scale_tokens, "scale_tokens");
LPQ_OP(gemm_act, "gemm_act");
}  // namespace lpq::w4ax
