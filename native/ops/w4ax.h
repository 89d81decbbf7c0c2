// What surrounds products of low-bit activations: quantize_activations, dequantize_activations, gather_columns,
// quantize_tokens, quantize_comet, gemm_w4ax.
#pragma once
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
struct QuantizeActivations {
  const Tensor &x, &bits, &clip;
  const Tensor* order;
  const Tensor &codes, &scales;
  int64_t rows, k, blocks;

  static QuantizeActivations parse(const Call& call) {
    Arguments a(call, "quantize_activations");
    const Tensor& x = a.input("x", kFloats, {-1, -1});
    const int64_t rows = x.dim(0), k = x.dim(1), blocks = blocks_of(x, "x");
    const Tensor &bits = a.input("bits", {DType::u8}, {blocks}), &clip = a.input("clip", {DType::f32}, {blocks});
    const Tensor* order = a.input_if(a.left() > 0, "order", {DType::i32}, {k});
    const Tensor &codes = a.output("codes", {DType::i8}, {rows, k}),
                 &scales = a.output("scales", {DType::f32}, {rows, blocks});
    a.done();
    return {x, bits, clip, order, codes, scales, rows, k, blocks};
  }
};

// x f32 [T,K] = code * scale; codes i8 [T,K], scales f32 [T,K/128].
struct DequantizeActivations {
  const Tensor &codes, &scales, &x;
  int64_t rows, k, blocks;

  static DequantizeActivations parse(const Call& call) {
    Arguments a(call, "dequantize_activations");
    const Tensor& codes = a.input("codes", {DType::i8}, {-1, -1});
    const int64_t rows = codes.dim(0), k = codes.dim(1), blocks = blocks_of(codes, "codes");
    const Tensor &scales = a.input("scales", {DType::f32}, {rows, blocks}), &x = a.output("x", {DType::f32}, {rows, k});
    a.done();
    return {codes, scales, x, rows, k, blocks};
  }
};

// y[t][j] = x[t][order[j]]; x, y f32 [T,K], order i32 [K]; y is not x.
struct GatherColumns {
  const Tensor &x, &order, &y;

  static GatherColumns parse(const Call& call) {
    Arguments a(call, "gather_columns");
    const Tensor &x = a.input("x", {DType::f32}, {-1, -1}), &order = a.input("order", {DType::i32}, {x.dim(1)}),
                 &y = a.output("y", {DType::f32}, x.shape);
    require(x.raw() != y.raw(), "y is x");
    a.done();
    return {x, order, y};
  }
};

// Codes and scales f32 [M] of x f32, f16 or bf16 [M,K], a token at a time: scale = max|x| * f32(1 / top), 0 below
// 2^-126; code = x * (1 / scale) clamped to +-top, rounded to nearest even; all in fp32. codes i8 [M,K]: top 127;
// f8_e4m3 [M,K]: top 448. The same bytes on every device. Fails with LPQ_NATIVE_NUMERICS for NaN and infinity.
struct QuantizeTokens {
  const Tensor &x, &codes, &scales;

  static QuantizeTokens parse(const Call& call) {
    Arguments a(call, "quantize_tokens");
    const Tensor &x = a.input("x", kFloats, {-1, -1}), &codes = a.output("codes", {DType::i8, DType::f8_e4m3}, x.shape),
                 &scales = a.output("scales", {DType::f32}, {x.dim(0)});
    require(x.dim(1) < kMostRows, "x has " + std::to_string(x.dim(1)) + " columns, which is 2^31 or more");
    a.done();
    return {x, codes, scales};
  }
};

// Activations by blocks of 128 columns: those of 8 bits side by side in x8 i8 [M, 128 e], of 4 bits in x4 u8 [M, 64 f],
// where byte 16 c + i of a block has column 32 c + i in its low nibble and 32 c + 16 + i in its high one. blocks i32
// [K/128]: a block's number among the e of 8 bits, or ~ its number among the f of 4.
struct W4axBlocks {
  const Tensor &x8, &x4, &blocks;
  int64_t count, eights, fours;

  static W4axBlocks of(const Tensor& x8, const Tensor& x4, const Tensor& blocks, int64_t rows, int64_t count) {
    require_tensor(blocks, "blocks", DType::i32, {count});
    require_tensor(x8, "x8", DType::i8, {rows, -1});
    require_tensor(x4, "x4", DType::u8, {rows, -1});
    const int64_t eights = x8.dim(1) / 128, fours = x4.dim(1) / 64;
    require(count > 0 && x8.dim(1) % 128 == 0 && x4.dim(1) % 64 == 0 && eights + fours == count,
            "x8 and x4 hold " + std::to_string(x8.dim(1)) + " and " + std::to_string(x4.dim(1)) +
                " bytes a token, which are not " + std::to_string(count) + " blocks");
    return {x8, x4, blocks, count, eights, fours};
  }
};

// What gemm_comet reads: the codes of quantize_activations of x f32 (CUDA: f16 and bf16 too) [M,K] as W4axBlocks, and
// scales f32 [K/128, M'], M' = M rounded up to fours. order as there. On CUDA x8 and x4 start at multiples of 4 bytes.
struct QuantizeComet {
  const Tensor &x, &bits, &clip;
  const Tensor* order;
  W4axBlocks to;
  const Tensor& scales;
  int64_t rows, k;

  static QuantizeComet parse(const Call& call) {
    Arguments a(call, "quantize_comet");
    const Tensor& x = a.input("x", kFloats, {-1, -1});
    const int64_t rows = x.dim(0), k = x.dim(1), count = blocks_of(x, "x");
    const Tensor &bits = a.input("bits", {DType::u8}, {count}), &clip = a.input("clip", {DType::f32}, {count}),
                 &blocks = a.input("blocks");
    const Tensor* order = a.input_if(a.left() > 0, "order", {DType::i32}, {k});
    const Tensor &x8 = a.output("x8"), &x4 = a.output("x4"),
                 &scales = a.output("scales", {DType::f32}, {count, up_to(rows, 4)});
    const W4axBlocks to = W4axBlocks::of(x8, x4, blocks, rows, count);
    a.done();
    return {x, bits, clip, order, to, scales, rows, k};
  }
};

// y f32 [T,N] = start + sum: sum runs over blocks b of 128 columns from 0, sum = fma(P, sx[t][b] * sw[n][b], sum), P
// the exact integer sum of the block's products of codes i8 x [T,K] and w [N,K], as f32 (|P| <= 128 * 127 * 128 <
// 2^24); start is bias f32 [N] (optional), with `accumulate` y + bias. x_scales f32 [T,K/128], w_scales f32 [N,K/128].
struct GemmW4ax {
  const Tensor &x, &x_scales, &w, &w_scales;
  const Tensor* bias;
  const Tensor& y;
  int64_t tokens, n, k, blocks;
  bool accumulate;

  static GemmW4ax parse(const Call& call) {
    Arguments a(call, "gemm_w4ax");
    const Tensor& x = a.input("x", {DType::i8}, {-1, -1});
    const int64_t tokens = x.dim(0), k = x.dim(1), blocks = blocks_of(x, "x");
    const Tensor &x_scales = a.input("x_scales", {DType::f32}, {tokens, blocks}),
                 &w = a.input("w", {DType::i8}, {-1, k});
    const int64_t n = w.dim(0);
    const Tensor& w_scales = a.input("w_scales", {DType::f32}, {n, blocks});
    const Tensor* bias = a.input_if(a.left() > 0, "bias", {DType::f32}, {n});
    const Tensor& y = a.output("y", {DType::f32}, {tokens, n});
    const bool accumulate = a.flag("accumulate");
    a.done();
    return {x, x_scales, w, w_scales, bias, y, tokens, n, k, blocks, accumulate};
  }
};

}  // namespace lpq::ops
