// rtn, pack_codes, unpack_codes, dequantize, prune_magnitude, and what scales are stored as.
#pragma once
#include "ops/arguments.h"

namespace lpq::ops {

inline constexpr Types kScaleTypes = {DType::f16, DType::bf16, DType::f32, DType::f8_e8m0, DType::f8_e4m3};

// Whole, then real ones; those of signed types do not fit u8.
inline constexpr Types kZeroTypes = {DType::u8, DType::i16, DType::f16, DType::f32};
inline constexpr Types kSignedZeroTypes = {DType::i16, DType::f16, DType::f32};

// Bytes of k codes as a bitstream.
inline int64_t bitstream_bytes(int64_t k, int64_t bits) { return (k * bits + 7) / 8; }

// Byte codes U8 [N,K] and rows of a little-endian bitstream U8 [N, ceil(K*bits/8)], element k at bit k*bits; padding 0.
// bits: 1 to 8.
struct Bitstream {
  const Tensor &codes, &stream;
  int bits;

  static Bitstream parse_pack(const Call& call) {
    Arguments a(call, "pack_codes");
    const Tensor &codes = a.input("codes"), &stream = a.output("stream");
    return read(a, codes, stream);
  }
  static Bitstream parse_unpack(const Call& call) {
    Arguments a(call, "unpack_codes");
    const Tensor &stream = a.input("stream"), &codes = a.output("codes");
    return read(a, codes, stream);
  }

 private:
  static Bitstream read(Arguments& a, const Tensor& codes, const Tensor& stream) {
    const int64_t bits = a.integer("bits");
    require(bits >= 1 && bits <= 8, "codes have 1 to 8 bits, not " + std::to_string(bits));
    require_tensor(codes, "codes", DType::u8, {-1, -1});
    require_tensor(stream, "stream", DType::u8, {codes.dim(0), bitstream_bytes(codes.dim(1), bits)});
    return a.done(), Bitstream{codes, stream, static_cast<int>(bits)};
  }
};

// Round to nearest (docs/internals/numerics.md): w f32, f16 or bf16 [N,K] -> codes, a bitstream U8 [N, ceil(K*bits/8)],
// scales [N, K/groupSize] in their dtype and, for asymmetric grids (symmetric: 0; integers alone), zeros u8 (unsigned
// types) or i16 (whole) or f16 or f32 (real) of that shape. `zero` is the constant of symmetric grids (0); `global`
// adds a second level to e4m3 scales; `scaleCover` makes e8m0 scales saturate nothing. stats f64 [9]: sum of squared
// errors, sum of squares, scales too large for the dtype, scales too small for it, weights that are not finite, flat
// index of the first of them (or -1), the second level, smallest and largest fp32 scale. CUDA adds the two sums in
// another order; all else is the CPU's, byte for byte.
struct Rtn {
  const Tensor &w, &codes, &scales, &stats;
  const Tensor* zeros;
  QuantType type;
  int64_t length, groups;
  float zero;
  bool whole_zeros, global, cover;

  static Rtn parse(const Call& call) {
    Arguments a(call, "rtn");
    const QuantType type = a.quant_type();
    const Tensor& w = a.input("w", kFloats, {-1, -1});
    const int64_t n = w.dim(0), k = w.dim(1), length = a.integer("groupSize");
    require(length > 0 && k % length == 0,
            "groups of " + std::to_string(length) + " do not divide K = " + std::to_string(k));
    const Tensor &codes = a.output("codes", {DType::u8}, {n, bitstream_bytes(k, type.bits)}),
                 &scales = a.output("scales", kScaleTypes, {n, k / length}),
                 &stats = a.output("stats", {DType::f64}, {9});
    const bool symmetric = a.number("symmetric") != 0, global = a.flag("global");
    require(!global || scales.dtype == DType::f8_e4m3, "only e4m3 scales have a second level");
    require(symmetric || type.kind == QuantType::Kind::integer, "only integers have asymmetric grids");
    const Tensor* zeros =
        symmetric ? nullptr : &a.output("zeros", type.is_signed ? kSignedZeroTypes : kZeroTypes, scales.shape);
    const bool whole = zeros && (zeros->dtype == DType::i16 || zeros->dtype == DType::u8);
    const Rtn of{w,      codes,      scales,
                 stats,  zeros,      type,
                 length, k / length, a.real("zero", 0),
                 whole,  global,     a.flag("scaleCover")};
    return a.done(), of;
  }
};

// W[n][k] = (decode(q) - zero) * scale * global in f32, stored in w's dtype (f32, f16, bf16); w [N,K], codes U8 [N,K];
// scales [N/blockN, K/blockK] (rounded up) f16, bf16, f32, f8_e8m0 or f8_e4m3; zeros (hasZeros) u8, i16, f16 or f32 of
// the same shape; group (hasGroup; g_idx) I32 [K] overrides k div blockK, and any number of groups is possible. zero
// (0): the constant used when zeros is absent; global: 1. A group that has no scale: LPQ_NATIVE_ARGUMENT.
struct Dequantize {
  const Tensor &codes, &scales, &w;
  const Tensor *zeros, *group;
  QuantType type;
  int64_t block_n, block_k;
  float zero, global;

  static Dequantize parse(const Call& call) {
    Arguments a(call, "dequantize");
    const QuantType type = a.quant_type();
    const Tensor& codes = a.input("codes", {DType::u8}, {-1, -1});
    const int64_t n = codes.dim(0), k = codes.dim(1), block_n = a.integer("blockN"), block_k = a.integer("blockK");
    require(block_n > 0 && block_k > 0, "a block has at least one row and one column");
    const bool has_group = a.flag("hasGroup");
    const Tensor& scales =
        a.input("scales", kScaleTypes, {(n + block_n - 1) / block_n, has_group ? -1 : (k + block_k - 1) / block_k});
    const Tensor *zeros = a.input_if(a.flag("hasZeros"), "zeros", kZeroTypes, scales.shape),
                 *group = a.input_if(has_group, "group", {DType::i32}, {k});
    const Dequantize of{codes,
                        scales,
                        a.output("w", kFloats, codes.shape),
                        zeros,
                        group,
                        type,
                        block_n,
                        block_k,
                        a.real("zero", 0),
                        a.real("global", 1)};
    return a.done(), of;
  }
};

// Of every four neighbours of a row the two largest stay (2:4): w f32, f16 or bf16 [N,K], K a multiple of 4 -> pruned
// f32 [N,K], 0 where pruned, and mask U8 [N, ceil(K/8)], bit k of a row is 1 where the weight stays. Of equal
// magnitudes the one further left stays. Four neighbours of which one is NaN or infinite are as they were, so that
// whoever rounds them finds them; the mask then names the first two. The same bytes on every device.
struct PruneMagnitude {
  const Tensor &w, &pruned, &mask;

  static PruneMagnitude parse(const Call& call) {
    Arguments a(call, "prune_magnitude");
    const Tensor& w = a.input("w", kFloats, {-1, -1});
    require(w.dim(1) % 4 == 0, "2:4 needs K divisible by 4");
    const PruneMagnitude of{w, a.output("pruned", {DType::f32}, w.shape),
                            a.output("mask", {DType::u8}, {w.dim(0), bitstream_bytes(w.dim(1), 1)})};
    return a.done(), of;
  }
};

}  // namespace lpq::ops
