// rtn, round_inputs, pack_codes, unpack_codes, dequantize, prune_magnitude, two_level_scales, group_energy, and what
// scales are stored as.
#pragma once
#include "ops/arguments.h"

namespace lpq::ops {

inline constexpr Types kScaleTypes = {f16, bf16, f32, f8_e8m0, f8_e4m3};

// Whole, then real ones; those of signed types do not fit u8.
inline constexpr Types kZeroTypes = {u8, i16, f16, f32};
inline constexpr Types kSignedZeroTypes = {i16, f16, f32};

// Bytes of k codes as a bitstream.
inline int64_t bitstream_bytes(int64_t k, int64_t bits) { return (k * bits + 7) / 8; }

inline int64_t groups_along(int64_t k, int64_t length) {
  require(length > 0 && k % length == 0,
          "groups of " + std::to_string(length) + " do not divide K = " + std::to_string(k));
  return k / length;
}

// Byte codes U8 [N,K] and rows of a little-endian bitstream U8 [N, ceil(K*bits/8)], element k at bit k*bits; padding 0.
// bits: 1 to 8.
struct Bitstream : Arguments {
  bool packs;
  const Tensor& codes = packs ? input("codes", {u8}, {-1, -1}) : output("codes", {u8}, {-1, -1});
  int bits = read_bits(integer("bits"));
  Dims rows = {codes.dim(0), bitstream_bytes(codes.dim(1), bits)};
  const Tensor& stream = packs ? output("stream", {u8}, rows) : input("stream", {u8}, rows);

  Bitstream(const Call& call, bool to_pack) : Arguments(call, to_pack ? "pack_codes" : "unpack_codes"), packs(to_pack) {
    done();
  }

 private:
  static int read_bits(int64_t bits) {
    require(bits >= 1 && bits <= 8, "codes have 1 to 8 bits, not " + std::to_string(bits));
    return static_cast<int>(bits);
  }
};

// Round to nearest (docs/internals/numerics.md): w f32, f16 or bf16 [N,K] -> codes, a bitstream U8 [N, ceil(K*bits/8)],
// scales [N, K/groupSize] in their dtype and, for asymmetric grids (symmetric: 0; integers alone), zeros u8 (unsigned
// types) or i16 (whole) or f16 or f32 (real) of that shape. `zero` is the constant of symmetric grids (0); `global`
// adds a second level to e4m3 scales; with `given` scales, positive f16, bf16 or f32 of symmetric integers, are there
// and stay; `scaleCover` makes e8m0 scales saturate nothing. stats f64 [9]: sum of squared
// errors, sum of squares, scales too large for the dtype, scales too small for it, weights that are not finite, flat
// index of the first of them (or -1), the second level, smallest and largest fp32 scale. CUDA adds the two sums in
// another order; all else is the CPU's, byte for byte.
struct Rtn : Arguments {
  QuantType type = quant_type();
  const Tensor& w = input("w", kFloats, {-1, -1});
  int64_t length = integer("groupSize"), groups = groups_along(w.dim(1), length);
  const Tensor& codes = output("codes", {u8}, {w.dim(0), bitstream_bytes(w.dim(1), type.bits)});
  const Tensor& scales = output("scales", kScaleTypes, {w.dim(0), groups});
  const Tensor& stats = output("stats", {f64}, {9});
  bool symmetric = number("symmetric") != 0, global = flag("global"), cover = flag("scaleCover"), given = flag("given");
  const Tensor* zeros = output_if(!symmetric, "zeros", type.is_signed ? kSignedZeroTypes : kZeroTypes, scales.shape);
  bool whole_zeros = zeros && (zeros->dtype == i16 || zeros->dtype == u8);
  float zero = real("zero", 0);

  explicit Rtn(const Call& call) : Arguments(call, "rtn") {
    require(!global || scales.dtype == f8_e4m3, "only e4m3 scales have a second level");
    require(!given || (symmetric && type.kind == QuantType::Kind::integer && dtype_bytes(scales.dtype) > 1),
            "given scales are floats of symmetric integers");
    require(symmetric || type.kind == QuantType::Kind::integer, "only integers have asymmetric grids");
    done();
  }
};

// y f32 [T,K] = x f32 [T,K] (in place, too) as symmetric numbers of the type times scales of `groupSize` neighbours,
// stored as `scaleDtype`, as rtn chooses them; `global` (1): the second level of e4m3 scales, which is given. What a
// linear reads whose activations have few bits. The same bytes on every device. Fails with LPQ_NATIVE_NUMERICS for NaN
// and infinity.
struct RoundInputs : Arguments {
  QuantType type = quant_type();
  const Tensor& x = input("x", {f32}, {-1, -1});
  int64_t length = integer("groupSize"), groups = groups_along(x.dim(1), length);
  DType dtype = dtype_from_name(text("scaleDtype"));
  float global = real("global", 1);
  const Tensor& y = output("y", {f32}, x.shape);

  explicit RoundInputs(const Call& call) : Arguments(call, "round_inputs") {
    require(global == 1 || dtype == f8_e4m3, "only e4m3 scales have a second level");
    require(global > 0 && global <= 3.0e38f, "the second level is positive and finite");
    require(type.is_signed, "inputs have signs");
    done();
  }
};

// W[n][k] = (decode(q) - zero) * scale * global in f32, stored in w's dtype (f32, f16, bf16); w [N,K], codes U8 [N,K];
// scales [N/blockN, K/blockK] (rounded up) f16, bf16, f32, f8_e8m0 or f8_e4m3; zeros (hasZeros) u8, i16, f16 or f32 of
// the same shape; group (hasGroup; g_idx) I32 [K] overrides k div blockK, and any number of groups is possible. zero
// (0): the constant used when zeros is absent; global: 1. A group that has no scale: LPQ_NATIVE_ARGUMENT.
struct Dequantize : Arguments {
  QuantType type = quant_type();
  const Tensor& codes = input("codes", {u8}, {-1, -1});
  int64_t n = codes.dim(0), k = codes.dim(1), block_n = integer("blockN"), block_k = integer("blockK");
  bool has_group = flag("hasGroup");
  const Tensor& scales = input("scales", kScaleTypes, sides());
  const Tensor* zeros = input_if(flag("hasZeros"), "zeros", kZeroTypes, scales.shape);
  const Tensor* group = input_if(has_group, "group", {i32}, {k});
  const Tensor& w = output("w", kFloats, codes.shape);
  float zero = real("zero", 0), global = real("global", 1);

  explicit Dequantize(const Call& call) : Arguments(call, "dequantize") { done(); }

 private:
  Dims sides() const {
    require(block_n > 0 && block_k > 0, "a block has at least one row and one column");
    return {(n + block_n - 1) / block_n, has_group ? -1 : (k + block_k - 1) / block_k};
  }
};

// The scales of a two-level grid (lpq/two_level.h): scale f32 [N,G] (in place), not 0, energy f32 [N,G], the price of
// a relative error of 1 of each -> scales of the same signs, of each row a positive number times whole factors from -15
// to 16, not 0, which `scaleDtype`, f16 or f32, holds exactly; groups of energy 0 have the factor 1.
struct TwoLevelScales : Arguments {
  const Tensor& energy = input("energy", {f32}, {-1, -1});
  const Tensor& scale = output("scale", {f32}, energy.shape);
  DType dtype = dtype_from_name(text("scaleDtype"));

  explicit TwoLevelScales(const Call& call) : Arguments(call, "two_level_scales") {
    require(dtype == f16 || dtype == f32, "two-level scales are stored as f16 or f32");
    done();
  }
};

// energy f32 [N,G] of w f32, f16 or bf16 [N,K], group I32 [K]: sums of w_j^2 in f64, or of w_j^2 M_jj of M f32 [K,K]
// (optional).
struct GroupEnergy : Arguments {
  const Tensor& w = input("w", kFloats, {-1, -1});
  const Tensor& group = input("group", {i32}, {w.dim(1)});
  const Tensor* m = last_input("M", {f32}, {w.dim(1), w.dim(1)});
  const Tensor& energy = output("energy", {f32}, {w.dim(0), -1});

  explicit GroupEnergy(const Call& call) : Arguments(call, "group_energy") { done(); }
};

// Of every four neighbours of a row the two largest stay (2:4): w f32, f16 or bf16 [N,K], K a multiple of 4 -> pruned
// f32 [N,K], 0 where pruned, and mask U8 [N, ceil(K/8)], bit k of a row is 1 where the weight stays. Of equal
// magnitudes the one further left stays. Four neighbours of which one is NaN or infinite are as they were, so that
// whoever rounds them finds them; the mask then names the first two. The same bytes on every device.
struct PruneMagnitude : Arguments {
  const Tensor& w = input("w", kFloats, {-1, -1});
  const Tensor& pruned = output("pruned", {f32}, w.shape);
  const Tensor& mask = output("mask", {u8}, {w.dim(0), bitstream_bytes(w.dim(1), 1)});

  explicit PruneMagnitude(const Call& call) : Arguments(call, "prune_magnitude") {
    require(w.dim(1) % 4 == 0, "2:4 needs K divisible by 4");
    done();
  }
};

}  // namespace lpq::ops
