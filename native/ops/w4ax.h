// What surrounds products of low-bit activations: quantize_activations, dequantize_activations, gather_columns,
// quantize_tokens, widen_tokens, scale_tokens, quantize_comet, gemm_w4ax; and what decides about them:
// channel_statistics, block_errors, simulate_kv.
#pragma once
#include <vector>

#include "ops/gemm.h"

namespace lpq::ops {

// Columns of x in blocks of 128.
inline int64_t blocks_of(const Tensor& x, const char* name) {
  const int64_t k = x.dim(1);
  require(k > 0 && k % 128 == 0,
          std::string(name) + " has " + std::to_string(k) + " columns, which is no multiple of 128");
  return k / 128;
}

// Codes i8 [T,K] and scales f32 [T,K/128] of x f32 (CUDA: f16 and bf16 too) [T,K], block by block of 128 columns with
// bits u8 [K/128] (4 or 8) and clip f32 [K/128]: scale = max|x| * (clip / top), top 7 or 127; code = x * (1 / scale)
// clamped to +-top, rounded to nearest even; a scale below 2^-126 is 0 and its codes are 0. order (optional) i32 [K]:
// column j reads x's column order[j]. Fails with LPQ_NATIVE_NUMERICS for NaN and infinity. On CUDA codes start at a
// multiple of 4 bytes.
struct QuantizeActivations : Arguments {
  const Tensor& x = input("x", kFloats, {-1, -1});
  int64_t rows = x.dim(0), k = x.dim(1), blocks = blocks_of(x, "x");
  const Tensor& bits = input("bits", {u8}, {blocks});
  const Tensor& clip = input("clip", {f32}, {blocks});
  const Tensor* order = last_input("order", {i32}, {k});
  const Tensor& codes = output("codes", {i8}, {rows, k});
  const Tensor& scales = output("scales", {f32}, {rows, blocks});

  explicit QuantizeActivations(const Call& call) : Arguments(call, "quantize_activations") { done(); }
};

// x f32 (CUDA: f16 and bf16 too) [T,K] = code * scale; codes i8 [T,K], scales f32 [T,K/128].
struct DequantizeActivations : Arguments {
  const Tensor& codes = input("codes", {i8}, {-1, -1});
  int64_t rows = codes.dim(0), k = codes.dim(1), blocks = blocks_of(codes, "codes");
  const Tensor& scales = input("scales", {f32}, {rows, blocks});
  const Tensor& x = output("x", kFloats, {rows, k});

  explicit DequantizeActivations(const Call& call) : Arguments(call, "dequantize_activations") { done(); }
};

// y[t][j] = x[t][order[j]]; x f32 (CUDA: f16 and bf16 too) [T,K], order i32 [K], y of x's dtype; y is not x.
struct GatherColumns : Arguments {
  const Tensor& x = input("x", kFloats, {-1, -1});
  const Tensor& order = input("order", {i32}, {x.dim(1)});
  const Tensor& y = output("y", {x.dtype}, x.shape);

  explicit GatherColumns(const Call& call) : Arguments(call, "gather_columns") {
    require(x.raw() != y.raw(), "y is x");
    done();
  }
};

// Codes and scales f32 [M] of x f32, f16 or bf16 [M,K], a token at a time: scale = max|x| * f32(1 / top), 0 below
// 2^-126; code = x * (1 / scale) clamped to +-top, rounded to nearest even; all in fp32. codes i8 [M,K]: top 127;
// f8_e4m3 [M,K]: top 448. The same bytes on every device. Fails with LPQ_NATIVE_NUMERICS for NaN and infinity.
struct QuantizeTokens : Arguments {
  const Tensor& x = input("x", kFloats, {-1, -1});
  const Tensor& codes = output("codes", {i8, f8_e4m3}, x.shape);
  const Tensor& scales = output("scales", {f32}, {x.dim(0)});

  explicit QuantizeTokens(const Call& call) : Arguments(call, "quantize_tokens") {
    require(x.dim(1) < kMostRows, "x has " + std::to_string(x.dim(1)) + " columns, which is 2^31 or more");
    done();
  }
};

// Codes i8 or f8_e4m3 [M,K] of tokens as numbers for products of 16 bits: x = code 2^e, f32, f16 or bf16 [M,K], and
// rest f32 [M] = scale 2^-e. x is exact. rest is from 1 to 2 where x's dtype has the room: e is at most 9 and at least
// -24 for i8 and f16, 7 and -15 for f8_e4m3 and f16, at most 100 from 0 for others; 0 where the scale is 0.
struct WidenTokens : Arguments {
  const Tensor& codes = input("codes", {i8, f8_e4m3}, {-1, -1});
  const Tensor& scales = input("scales", {f32}, {codes.dim(0)});
  const Tensor& x = output("x", kFloats, codes.shape);
  const Tensor& rest = output("rest", {f32}, {codes.dim(0)});
  bool integers = codes.dtype == i8;
  int least = x.dtype != f16 ? -100 : integers ? -24 : -15, most = x.dtype != f16 ? 100 : integers ? 9 : 7;

  explicit WidenTokens(const Call& call) : Arguments(call, "widen_tokens") {
    require(codes.dim(1) < kMostRows, "codes has " + std::to_string(codes.dim(1)) + " columns, which is 2^31 or more");
    done();
  }
};

// y = y rest + bias in fp32, rounded once; y f32, f16 or bf16 [M,N], rest f32 [M], bias (optional) [N] f32, f16 or
// bf16.
struct ScaleTokens : Arguments {
  const Tensor& rest = input("rest", {f32}, {-1});
  const Tensor& y = output("y", kFloats, {rest.dim(0), -1});
  const Tensor* bias = last_input("bias", kFloats, {y.dim(1)});

  explicit ScaleTokens(const Call& call) : Arguments(call, "scale_tokens") { done(); }
};

// Activations by blocks of 128 columns: those of 8 bits side by side in x8 i8 [M, 128 e], of 4 bits in x4 u8 [M, 64 f],
// where byte 16 c + i of a block has column 32 c + i in its low nibble and 32 c + 16 + i in its high one. blocks i32
// [K/128]: a block's number among the e of 8 bits, or ~ its number among the f of 4.
struct W4axBlocks {
  const Tensor &x8, &x4, &blocks;
  int64_t count, eights, fours;

  static W4axBlocks of(const Tensor& x8, const Tensor& x4, const Tensor& blocks, int64_t rows, int64_t count) {
    require_tensor(blocks, "blocks", i32, {count});
    require_tensor(x8, "x8", i8, {rows, -1});
    require_tensor(x4, "x4", u8, {rows, -1});
    const int64_t eights = x8.dim(1) / 128, fours = x4.dim(1) / 64;
    require(count > 0 && x8.dim(1) % 128 == 0 && x4.dim(1) % 64 == 0 && eights + fours == count,
            "x8 and x4 hold " + std::to_string(x8.dim(1)) + " and " + std::to_string(x4.dim(1)) +
                " bytes a token, which are not " + std::to_string(count) + " blocks");
    return {x8, x4, blocks, count, eights, fours};
  }
};

// What gemm_comet reads: the codes of quantize_activations of x f32 (CUDA: f16 and bf16 too) [M,K] as W4axBlocks, and
// scales f32 [K/128, M'], M' = M rounded up to fours. order as there. A block of 4 bits may also stand in x8. On CUDA
// x8 and x4 start at multiples of 4 bytes.
struct QuantizeComet : Arguments {
  const Tensor& x = input("x", kFloats, {-1, -1});
  int64_t rows = x.dim(0), k = x.dim(1), count = blocks_of(x, "x");
  const Tensor& bits = input("bits", {u8}, {count});
  const Tensor& clip = input("clip", {f32}, {count});
  const Tensor& blocks = input("blocks");
  const Tensor* order = last_input("order", {i32}, {k});
  const Tensor &x8 = output("x8"), &x4 = output("x4");
  const Tensor& scales = output("scales", {f32}, {count, up_to(rows, 4)});
  W4axBlocks to = W4axBlocks::of(x8, x4, blocks, rows, count);

  explicit QuantizeComet(const Call& call) : Arguments(call, "quantize_comet") { done(); }
};

// y f32 [T,N] = start + sum: sum runs over blocks b of 128 columns from 0, sum = fma(P, sx[t][b] * sw[n][b], sum), P
// the exact integer sum of the block's products of codes i8 x [T,K] and w [N,K], as f32 (|P| <= 128 * 127 * 128 <
// 2^24); start is bias f32 [N] (optional), with `accumulate` y + bias. x_scales f32 [T,K/128], w_scales f32 [N,K/128].
struct GemmW4ax : Arguments {
  const Tensor& x = input("x", {i8}, {-1, -1});
  int64_t tokens = x.dim(0), k = x.dim(1), blocks = blocks_of(x, "x");
  const Tensor& x_scales = input("x_scales", {f32}, {tokens, blocks});
  const Tensor& w = input("w", {i8}, {-1, k});
  int64_t n = w.dim(0);
  const Tensor& w_scales = input("w_scales", {f32}, {n, blocks});
  const Tensor* bias = last_input("bias", {f32}, {n});
  const Tensor& y = output("y", {f32}, {tokens, n});
  bool accumulate = flag("accumulate");

  explicit GemmW4ax(const Call& call) : Arguments(call, "gemm_w4ax") { done(); }
};

// most f32 [K] = max(most, |x|) and moments f64 [K] += x^2 down the columns of x f32 (CUDA: f16 and bf16 too) [T,K],
// row by row in f64, where squares of f32 are exact. Fails with LPQ_NATIVE_NUMERICS for NaN and infinity.
struct ChannelStatistics : Arguments {
  const Tensor& x = input("x", kFloats, {-1, -1});
  const Tensor& most = output("most", {f32}, {x.dim(1)});
  const Tensor& moments = output("moments", {f64}, {x.dim(1)});

  explicit ChannelStatistics(const Call& call) : Arguments(call, "channel_statistics") { done(); }
};

// errors f64 [J/128,C] of x f32 [T,K] with weight f32 [K]: of each block of 128 entries of order i32 [J] and each
// choice of `bits` (4 or 8) and `clips` the sum over rows of weight (x - its dequantized code)^2, codes as
// quantize_activations makes them. Of a row, entries l, l + 16, ... of the block add in f32, those 16 sums one after
// another in f64; rows add in f64 in their order. The same bytes on every device.
struct BlockErrors : Arguments {
  static constexpr int64_t kMostChoices = 16;

  const Tensor& x = input("x", {f32}, {-1, -1});
  int64_t rows = x.dim(0), k = x.dim(1);
  const Tensor& weight = input("weight", {f32}, {k});
  const Tensor& order = input("order", {i32}, {-1});
  int64_t blocks = order.dim(0) / 128;
  const std::vector<double>&bits = list("bits"), &clips = list("clips");
  int64_t choices = static_cast<int64_t>(bits.size());
  const Tensor& errors = output("errors", {f64}, {blocks, choices});

  explicit BlockErrors(const Call& call) : Arguments(call, "block_errors") {
    require(blocks * 128 == order.dim(0), "order has " + std::to_string(order.dim(0)) + " entries, no multiple of 128");
    require(clips.size() == bits.size(), "bits and clips differ in length");
    require(choices > 0 && choices <= kMostChoices,
            "there are " + std::to_string(choices) + " choices, not 1 to " + std::to_string(kMostChoices));
    for (const double width : bits)
      require(width == 4 || width == 8, "bits holds " + std::to_string(width) + ", not 4 or 8");
    done();
  }
};

// y = x f32 (CUDA: f16 and bf16 too) [T,C] as a cache of `bits` (1 to 8) a value gives it back, every channel over runs
// of `group` tokens of each of the sequences that starts i32 [S+1] cuts; the last run of one may be shorter: zero =
// f16(least), scale = f16((greatest - zero) / (2^bits - 1)), y = fma(code, scale, zero). `clip`: least and greatest are
// first drawn in by i / 40 of the range, i of 0 to 7 with the least squared error, in f64. y may be x.
struct SimulateKv : Arguments {
  const Tensor& x = input("x", kFloats, {-1, -1});
  const Tensor& starts = input("starts", {i32}, {-1});
  int64_t tokens = x.dim(0), width = x.dim(1), sequences = starts.dim(0) - 1;
  int64_t group = at_least(1, "group"), bits = integer("bits");
  bool clip = flag("clip");
  const Tensor& y = output("y", {x.dtype}, x.shape);

  explicit SimulateKv(const Call& call) : Arguments(call, "simulate_kv") {
    require(bits >= 1 && bits <= 8, "bits is " + std::to_string(bits) + ", not 1 to 8");
    require(sequences >= 0, "starts is empty");
    done();
  }
};

}  // namespace lpq::ops
