// A Sparse-MARLIN kernel, lane by lane: lanes read their codes, scales and metadata from the packed bytes, dequantize
// with the kernel's bit tricks, and feed mma.sp.m16n8k32: of every four rows of B, the metadata of a row of A selects
// the two that its kept weights meet (PTX ISA, "mma.sp"). The kernel computes C^T, so the weight is operand A and
// tokens are columns. Model of
// the accumulation: fp16 products are exact, sums run in fp32 along the compressed columns and round at every step.
#include <cmath>
#include <vector>

#include "cpu/verify/emulation.h"
#include "cpu/verify/half.h"
#include "cpu/verify/sparse_words.h"
#include "cpu/verify/stream.h"

namespace lpq::verify {
namespace {

constexpr int kTokens = 8;

// Four values out of nibbles 0, 4 (low) and 1, 5 (high): as the dense kernel does it (emulate_marlin.cpp).
void dequantize4(uint32_t q, uint16_t out[4]) {
  const uint32_t lo = (q & 0x000f000fu) | 0x64006400u, hi = (q & 0x00f000f0u) | 0x64006400u;
  out[0] = half_sub(static_cast<uint16_t>(lo), 0x6408);
  out[1] = half_sub(static_cast<uint16_t>(lo >> 16), 0x6408);
  out[2] = half_fma(static_cast<uint16_t>(hi), 0x2c00, 0xd480);
  out[3] = half_fma(static_cast<uint16_t>(hi >> 16), 0x2c00, 0xd480);
}

// Bytes 0, 2 and 1, 3 put into the fraction of 1024 (PRMT with 0x64), less 1152.
void dequantize8(uint32_t q, uint16_t out[4]) {
  static constexpr int byte[4] = {0, 2, 1, 3};
  for (int i = 0; i < 4; ++i) out[i] = half_sub(static_cast<uint16_t>(0x6400u | (q >> 8 * byte[i] & 0xffu)), 0x6480);
}

// The eight registers of a lane for product j: a0 a1 (upper rows), a2 a3 (lower rows), then the later columns.
void fragment(const SparseTile& tile, int lane, int j, uint16_t a[8]) {
  for (int below = 0; below < 2; ++below) {
    uint16_t v[4];
    if (tile.bits == 4) dequantize4(tile.words[lane * 4 + j] >> 8 * below, v);
    else dequantize8(tile.words[lane * 8 + 2 * j + below], v);
    a[2 * below] = v[0], a[2 * below + 1] = v[1], a[4 + 2 * below] = v[2], a[5 + 2 * below] = v[3];
  }
}

// Inputs: B I32 [kp/32, np*bits/2], meta I16 [kp/32, 2np], s F16 [R, np]; what they should hold: codes U8 [N,
// ceil(K*bits/8)], mask U8 [N, ceil(K/8)], scales F16 [N, R]. Params: bits, k, zero (subtracted from a canonical code),
// signed, seed, strips (64 columns each). Outputs as emulate_marlin.cpp's: registers I64 [5], outputs F64 [7].
void emulate_sparse(Call& call, Exec& exec) {
  Arguments a(call, "verify_emulate_sparse");
  const int64_t bits = a.integer("bits"), k_true = a.integer("k");
  require(bits == 4 || bits == 8, "codes of 4 or 8 bits");
  const Tensor &packed = a.input("B", {DType::i32}, {-1, -1}), &meta = a.input("meta", {DType::i16}, {-1, -1});
  const int64_t steps = meta.dim(0), np = meta.dim(1) / 2, kp = steps * kSparseK, strips_all = np / kSparseN;
  const Tensor& packed_scales = a.input("s", {DType::f16}, {-1, np});
  const int64_t rows = packed_scales.dim(0);
  const Tensor& codes = a.input("codes", {DType::u8}, {-1, ceil_div(k_true * bits, 8)});
  const int64_t n_true = codes.dim(0);
  const Tensor& mask = a.input("mask", {DType::u8}, {n_true, ceil_div(k_true, 8)});
  const Tensor& scales = a.input("scales", {DType::f16}, {n_true, rows});
  const bool per_channel = rows == 1, is_signed = a.flag("signed");
  const int64_t zero = a.integer("zero");
  const Strips strips(a);
  a.done();
  require(np % kSparseN == 0 && packed.dim(0) == steps && packed.dim(1) == np * bits / 2,
          "B and meta are of one shape");
  require(rows > 0 && kp % rows == 0 && kp / rows % kSparseK == 0, "s and B are of one shape");
  const int64_t group = kp / rows;
  const auto* words = reinterpret_cast<const uint32_t*>(packed.raw());
  const auto* metadata = reinterpret_cast<const uint32_t*>(meta.raw());
  const uint16_t *s = packed_scales.data<uint16_t>(), *want_scales = scales.data<uint16_t>();
  const std::vector<float> x = activations(strips.seed, kp * kTokens);

  const auto canonical = [&](int64_t n, int64_t k) -> int64_t {  // q - zero, and 0 where pruned and in the padding
    if (n >= n_true || k >= k_true || !stream_get(mask.data<uint8_t>() + n * mask.dim(1), k, 1)) return 0;
    const int64_t code = stream_get(codes.data<uint8_t>() + n * codes.dim(1), k, static_cast<int>(bits));
    return (is_signed && code >> (bits - 1) ? code - (int64_t{1} << bits) : code) - zero;
  };

  strips.run(exec, strips_all, [&](int64_t strip, Wrong& wrong, WorstOutput& worst) {
    float d[4][16][kTokens] = {};
    ExactStrip exact(kSparseN, kTokens);
    for (int64_t kt = 0; kt < steps; ++kt) {
      const SparseTile tile = sparse_tile(words, metadata, static_cast<int>(bits), strips_all, strip, kt);
      for (int j = 0; j < 4; ++j) {
        float held[16][16];
        for (int lane = 0; lane < kLanes; ++lane) {
          uint16_t v[8];
          fragment(tile, lane, j, v);
          for (int i = 0; i < 8; ++i) {
            const Cell cell = fragment_a(lane, i);
            const int64_t n = strip * kSparseN + sparse_feature(j, cell.row);
            const int place = static_cast<int>(tile.places(j, cell.row, cell.col / 2) >> 2 * (cell.col % 2) & 3);
            const int64_t k = kt * kSparseK + 4 * (cell.col / 2) + place;
            const uint16_t want = half_from_float(static_cast<float>(canonical(n, k)));
            if (v[i] != want) wrong.see(n, k, v[i], want);
            // Eight scales a lane, those of its eight features: element 2j + (lower rows).
            if (!per_channel)
              v[i] = half_mul(
                  v[i], s[(kt * kSparseK / group) * np + strip * kSparseN + 8 * (lane / 4) + 2 * j + cell.row / 8]);
            held[cell.row][cell.col] = half_value(v[i]);
          }
        }
        // mma.sp: row r's compressed column c meets row 4 (c/2) + place of B.
        for (int row = 0; row < 16; ++row)
          for (int c = 0; c < 16; ++c) {
            const int place = static_cast<int>(tile.places(j, row, c / 2) >> 2 * (c % 2) & 3);
            const float* b = &x[static_cast<size_t>((kt * kSparseK + 4 * (c / 2) + place) * kTokens)];
            // The product of two fp16 values is exact in fp32.
            for (int t = 0; t < kTokens; ++t) d[j][row][t] = d[j][row][t] + held[row][c] * b[t];
          }
      }
      for (int f = 0; f < kSparseN; ++f) {
        const int64_t n = strip * kSparseN + f;
        for (int r = 0; r < kSparseK; ++r) {
          const int64_t k = kt * kSparseK + r;
          const double q = static_cast<double>(canonical(n, k));
          const double w = n < n_true ? q * half_value(want_scales[n * rows + k / group]) : 0.0;
          exact.add(f, &x[static_cast<size_t>(k * kTokens)], q, w);
        }
      }
    }
    for (int j = 0; j < 4; ++j)
      for (int row = 0; row < 16; ++row)
        for (int t = 0; t < kTokens; ++t) {
          const int f = sparse_feature(j, row);
          const int64_t n = strip * kSparseN + f;
          const uint16_t acc = half_from_float(d[j][row][t]), y = per_channel ? half_mul(acc, s[n]) : acc;
          const double scale = per_channel && n < n_true ? std::fabs(half_value(want_scales[n])) : 0.0;
          const ExactOutput want = exact.at(f, t);
          worst.see(t, n, half_value(y), want.sum, output_bound(want, kp, per_channel, scale));
        }
  });
}
LPQ_OP(emulate_sparse, "verify_emulate_sparse");

}  // namespace
}  // namespace lpq::verify
