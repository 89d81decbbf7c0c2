// A MARLIN kernel, lane by lane: each of 32 lanes reads its words and scales from the packed bytes, dequantizes with
// the kernel's bit tricks on 32-bit registers, and feeds mma.m16n8k16 fragments. Written from the MARLIN paper
// (sections 3.2 to 3.4) and the PTX ISA. Model of the accumulation: fp16 products are exact, sums run in fp32 with k
// ascending and round to nearest at every step; one thread block owns all of K, so there is no fp16 reduction between
// blocks.
#include <cmath>
#include <vector>

#include "cpu/verify/emulation.h"
#include "cpu/verify/fragments.h"
#include "cpu/verify/half.h"
#include "cpu/verify/stream.h"

namespace lpq::verify {
namespace {

constexpr int kM = 16, kTileN = 64;

struct Half2 {
  uint16_t low, high;
};
Half2 split(uint32_t r) { return {static_cast<uint16_t>(r), static_cast<uint16_t>(r >> 16)}; }

// Four values out of nibbles 0, 4, 1, 5: lop3 places a nibble in the fraction of 1024 (0x6400), the upper one 16 times
// as large; subtracting 1032 leaves q - 8, and x/16 - 72 does the same for the other.
void dequantize(uint32_t q, Half2 out[2]) {
  const Half2 lo = split((q & 0x000f000fu) | 0x64006400u);
  const Half2 hi = split((q & 0x00f000f0u) | 0x64006400u);
  out[0] = {half_sub(lo.low, 0x6408), half_sub(lo.high, 0x6408)};
  out[1] = {half_fma(hi.low, 0x2c00, 0xd480), half_fma(hi.high, 0x2c00, 0xd480)};
}

struct Lane {
  float c[4][2][4] = {};  // column sixteenth j, its left and right 8 columns, register
};

// fp32(sum + a*b) with the product of two fp16 values exact: 22 bits, which fp32 holds (exponents from -48 to 32
// included).
// So this is std::fma without the library call that baseline x86-64 makes of it.
float accumulate(float a, float b, float sum) { return sum + a * b; }

// One mma for the whole warp: gathers the lanes' registers into A (16 x 16) and B (16 x 8), multiplies, and hands C
// back.
void mma(const float a[kM][16], const float b[16][8], Lane* lanes, int j, int right) {
  float c[kM][8];
  for (int lane = 0; lane < kLanes; ++lane)
    for (int i = 0; i < 4; ++i) c[fragment_c(lane, i).row][fragment_c(lane, i).col] = lanes[lane].c[j][right][i];
  for (int m = 0; m < kM; ++m)
    for (int k = 0; k < 16; ++k)
      for (int n = 0; n < 8; ++n) c[m][n] = accumulate(a[m][k], b[k][n], c[m][n]);
  for (int lane = 0; lane < kLanes; ++lane)
    for (int i = 0; i < 4; ++i) lanes[lane].c[j][right][i] = c[fragment_c(lane, i).row][fragment_c(lane, i).col];
}

// Inputs: B I32 [Kp/16, 2Np], s F16 [R, Np]; what they should hold: codes U8 [N, ceil(K/2)], scales F16 [N, R] in
// canonical order. Params: k, zero (subtracted from a code), signed, seed, strips (64-column strips to run).
// Outputs: registers I64 [5], the dequantized values that are not q - zero (row n, column k, fp16 bits), exact; and
// outputs F64 [7]: count, m, n, got, expected, bound of outputs off by more than the bound, and the largest error /
// bound.
void emulate_marlin(Call& call, Exec& exec) {
  Arguments a(call, "verify_emulate_marlin");
  const Tensor& packed = a.input("B", {DType::i32}, {-1, -1});
  const int64_t tiles = packed.dim(0), strips_all = packed.dim(1) / 128, width = strips_all * kTileN, kp = tiles * 16;
  const Tensor& packed_scales = a.input("s", {DType::f16}, {-1, width});
  const int64_t rows = packed_scales.dim(0), k_true = a.integer("k");
  const Tensor& codes = a.input("codes", {DType::u8}, {-1, ceil_div(k_true, 2)});
  const int64_t n_true = codes.dim(0);
  const Tensor& scales = a.input("scales", {DType::f16}, {n_true, rows});
  const bool per_channel = rows == 1, is_signed = a.flag("signed");
  const int64_t zero = a.integer("zero");
  const Strips strips(a);
  a.done();
  require(packed.dim(1) % 128 == 0 && rows > 0 && kp % rows == 0 && kp / rows % 16 == 0, "B and s are of one shape");
  const int64_t group = kp / rows;
  const uint32_t* words = reinterpret_cast<const uint32_t*>(packed.data<int32_t>());
  const uint16_t* s = packed_scales.data<uint16_t>();
  const uint16_t* want_scales = scales.data<uint16_t>();
  const uint8_t* want_codes = codes.data<uint8_t>();
  const std::vector<float> x = activations(strips.seed, kM * kp);
  std::vector<float> columns(x.size());  // [Kp][16] for the reference
  for (int64_t k = 0; k < kp; ++k)
    for (int m = 0; m < kM; ++m) columns[static_cast<size_t>(k * kM + m)] = x[static_cast<size_t>(m * kp + k)];

  const auto canonical = [&](int64_t n, int64_t k) -> int64_t {  // q - zero, and 0 in the padding
    if (n >= n_true || k >= k_true) return 0;
    const int64_t code = static_cast<int64_t>(stream_get(want_codes + n * codes.dim(1), k, 4));
    return (is_signed && code >= 8 ? code - 16 : code) - zero;
  };

  strips.run(exec, strips_all, [&](int64_t strip, Wrong& wrong, WorstOutput& worst) {
    std::vector<Lane> lanes(kLanes);
    ExactStrip exact(kTileN, kM);
    for (int64_t kt = 0; kt < tiles; ++kt) {
      float a_tile[kM][16];
      for (int lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < 8; ++i) {
          const Cell cell = fragment_a(lane, i);
          a_tile[cell.row][cell.col] = x[static_cast<size_t>(cell.row * kp + kt * 16 + cell.col)];
        }
      for (int j = 0; j < 4; ++j)
        for (int right = 0; right < 2; ++right) {
          float b_tile[16][8];
          for (int lane = 0; lane < kLanes; ++lane) {
            const uint32_t q = words[(kt * strips_all + strip) * 128 + lane * 4 + j] >> (right ? 8 : 0);
            Half2 b[2];
            dequantize(q, b);
            uint16_t registers4[4] = {b[0].low, b[0].high, b[1].low, b[1].high};
            for (int i = 0; i < 4; ++i) {
              const Cell cell = fragment_b(lane, i);
              const int64_t n = strip * kTileN + 16 * j + 8 * right + cell.col, k = kt * 16 + cell.row;
              const uint16_t want = half_from_float(static_cast<float>(canonical(n, k)));
              if (registers4[i] != want) wrong.see(n, k, registers4[i], want);
              // Eight scales, one 16-byte read a lane: element 2j + right belongs to this fragment's column.
              if (!per_channel)
                registers4[i] = half_mul(
                    registers4[i], s[(kt * 16 / group) * width + strip * kTileN + 8 * (lane / 4) + 2 * j + right]);
              b_tile[cell.row][cell.col] = half_value(registers4[i]);
            }
          }
          mma(a_tile, b_tile, lanes.data(), j, right);
        }
      // The reference: canonical codes and scales, fp64.
      for (int c = 0; c < kTileN; ++c) {
        const int64_t n = strip * kTileN + c;
        for (int r = 0; r < 16; ++r) {
          const int64_t k = kt * 16 + r;
          const double q = static_cast<double>(canonical(n, k));
          const double w = n < n_true ? q * half_value(want_scales[n * rows + k / group]) : 0.0;
          exact.add(c, &columns[static_cast<size_t>(k * kM)], q, w);
        }
      }
    }
    for (int lane = 0; lane < kLanes; ++lane)
      for (int j = 0; j < 4; ++j)
        for (int right = 0; right < 2; ++right)
          for (int i = 0; i < 4; ++i) {
            const Cell cell = fragment_c(lane, i);
            const int c = 16 * j + 8 * right + cell.col;
            const int64_t n = strip * kTileN + c;
            uint16_t y = half_from_float(lanes[lane].c[j][right][i]);
            if (per_channel) {
              const int half = j / 2, element = 2 * (2 * (j % 2) + right) + i % 2;
              y = half_mul(y, s[strip * kTileN + 32 * half + 8 * (lane % 4) + element]);
            }
            const double scale = per_channel && n < n_true ? std::fabs(half_value(want_scales[n])) : 0.0;
            const ExactOutput want = exact.at(c, cell.row);
            worst.see(cell.row, n, half_value(y), want.sum, output_bound(want, kp, per_channel, scale));
          }
  });
}
LPQ_OP(emulate_marlin, "verify_emulate_marlin");

}  // namespace
}  // namespace lpq::verify
