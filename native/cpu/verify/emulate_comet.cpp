// A W4Ax kernel, lane by lane: tokens become codes of 4 or 8 bits by blocks of 128 channels and are stored as the
// kernel has them; lanes read their words, widen nibbles by a shift and a mask (each code times 16), and feed
// mma.m16n8k32 with signed bytes, tokens as operand A and weights as operand B. Sums of a block are exact integers;
// they are scaled in fp32 in the order of the blocks.
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/verify/emulation.h"
#include "cpu/verify/fragments.h"
#include "cpu/verify/stream.h"

namespace lpq::verify {
namespace {

constexpr int kTokens = 16, kFeatures = 16, kBlock = 128, kChunk = 32;

// Registers of mma.m16n8k32 with 8-bit operands, as the PTX ISA has them: byte i of register r of operand A is row lane
// / 4 + 8 (r % 2), column 4 (lane % 4) + i + 16 (r / 2); of operand B row 4 (lane % 4) + i + 16 r, column lane / 4.
Cell a_byte(int lane, int r, int i) { return {lane / 4 + 8 * (r % 2), 4 * (lane % 4) + i + 16 * (r / 2)}; }
Cell b_byte(int lane, int r, int i) { return {4 * (lane % 4) + i + 16 * r, lane / 4}; }

int signed_byte(uint32_t word, int i) { return static_cast<int8_t>(word >> 8 * i & 0xff); }

// What the rows of x are to a linear of this form: codes [kTokens, K], their scales [kTokens, K/128], and the same
// codes in the kernel's form, those of blocks of 8 bits side by side and of blocks of 4 bits two a byte.
struct Tokens {
  std::vector<int> codes;
  std::vector<float> scales;
  std::vector<uint8_t> x8, x4;
  int64_t eights = 0, fours = 0;
};

// formats/canonical/spec.md: scale = max|x| (clip / top), code = x (1 / scale) to the nearest integer, ties to even, in
// fp32. nearbyint rounds so by default.
Tokens quantized(const std::vector<float>& x, int64_t k, const uint8_t* bits, const float* clip, const int32_t* blocks,
                 const int32_t* order) {
  Tokens t;
  const int64_t count = k / kBlock;
  for (int64_t b = 0; b < count; ++b) ++(bits[b] == 8 ? t.eights : t.fours);
  t.codes.resize(static_cast<size_t>(kTokens * k)), t.scales.resize(static_cast<size_t>(kTokens * count));
  t.x8.resize(static_cast<size_t>(kTokens * t.eights * 128)), t.x4.resize(static_cast<size_t>(kTokens * t.fours * 64));
  for (int64_t row = 0; row < kTokens; ++row)
    for (int64_t b = 0; b < count; ++b) {
      const auto value = [&](int64_t i) {
        return x[static_cast<size_t>(row * k + (order ? order[b * kBlock + i] : b * kBlock + i))];
      };
      float most = 0;
      for (int64_t i = 0; i < kBlock; ++i) most = std::max(most, std::fabs(value(i)));
      const float top = bits[b] == 4 ? 7 : 127, ratio = clip[b] / top;
      float scale = most * ratio;
      if (scale < std::numeric_limits<float>::min()) scale = 0;
      const float inverse = scale > 0 ? 1 / scale : 0;
      t.scales[static_cast<size_t>(row * count + b)] = scale;
      for (int64_t i = 0; i < kBlock; ++i) {
        const float scaled = value(i) * inverse;
        const int code = static_cast<int>(std::nearbyint(std::min(std::max(scaled, -top), top)));
        t.codes[static_cast<size_t>(row * k + b * kBlock + i)] = code;
        if (bits[b] == 8) {
          t.x8[static_cast<size_t>((row * t.eights + blocks[b]) * 128 + i)] = static_cast<uint8_t>(code);
        } else {
          uint8_t& byte = t.x4[static_cast<size_t>((row * t.fours + ~blocks[b]) * 64 + i / 32 * 16 + i % 16)];
          byte = static_cast<uint8_t>(byte | (code & 15) << (i % 32 < 16 ? 0 : 4));
        }
      }
    }
  return t;
}

// Inputs: packed U8 [np/16, K/128, 1024], packed scales F32 [K/128, np], bits U8, clip F32, blocks I32 [K/128]; what
// they should hold: codes U8 [N, K/2], scales F32 [N, K/128]; permutation I32 [K] (optional). Params: seed, strips (16
// output features each). Outputs: registers I64 [5], the first wrong integer sum of a block (row n, column k of the
// block); outputs F64 [7] as emulate_lanes.cpp's.
void emulate_comet(Call& call, Exec& exec) {
  Arguments a(call, "verify_emulate_comet");
  const Tensor& packed = a.input("packed", {DType::u8}, {-1, -1, 1024});
  const int64_t strips_all = packed.dim(0), count = packed.dim(1), k = count * kBlock, np = strips_all * kFeatures;
  const Tensor& packed_scales = a.input("packed scales", {DType::f32}, {count, np});
  const Tensor& bits = a.input("bits", {DType::u8}, {count});
  const Tensor& clip = a.input("clip", {DType::f32}, {count});
  const Tensor& blocks = a.input("blocks", {DType::i32}, {count});
  const Tensor& codes = a.input("codes", {DType::u8}, {-1, k / 2});
  const int64_t n_true = codes.dim(0);
  const Tensor& scales = a.input("scales", {DType::f32}, {n_true, count});
  const Tensor* permutation = a.last_input("permutation", {DType::i32}, {k});
  const Strips strips(a);
  a.done();
  require(n_true <= np, "packed holds N");
  const uint8_t* width = bits.data<uint8_t>();
  const int32_t* place = blocks.data<int32_t>();
  int64_t eights = 0;
  for (int64_t b = 0; b < count; ++b) eights += width[b] == 8;
  for (int64_t b = 0; b < count; ++b) {
    require(width[b] == 4 || width[b] == 8, "bits is 4 or 8");
    require(width[b] == 8 ? place[b] >= 0 && place[b] < eights : place[b] < 0 && ~place[b] < count - eights,
            "blocks numbers the blocks of each precision");
  }
  const int32_t* order = permutation ? checked_order(*permutation) : nullptr;
  const Tokens tokens = quantized(activations(strips.seed, kTokens * k), k, width, clip.data<float>(), place, order);

  const auto canonical = [&](int64_t n, int64_t column) {
    if (n >= n_true) return 0;
    const int code = static_cast<int>(stream_get(codes.data<uint8_t>() + n * codes.dim(1), column, 4));
    return code >= 8 ? code - 16 : code;
  };

  strips.run(exec, strips_all, [&](int64_t strip, Wrong& wrong, WorstOutput& worst) {
    float sums[kTokens][kFeatures] = {};
    double exact[kTokens][kFeatures] = {}, size[kTokens][kFeatures] = {};
    for (int64_t b = 0; b < count; ++b) {
      const uint8_t* tile = packed.data<uint8_t>() + (strip * count + b) * 1024;
      const bool four = width[b] == 4;
      int32_t d[kTokens][kFeatures] = {};
      for (int chunk = 0; chunk < kBlock / kChunk; ++chunk) {
        int a[kTokens][kChunk];
        for (int lane = 0; lane < kLanes; ++lane)
          for (int r = 0; r < 4; ++r) {
            const int row = a_byte(lane, r, 0).row, at = 4 * (lane % 4);
            uint32_t word;
            if (four) {
              word = word_at(&tokens.x4[static_cast<size_t>((row * tokens.fours + ~place[b]) * 64 + 16 * chunk + at)]);
              word = (r < 2 ? word << 4 : word) & 0xf0f0f0f0u;
            } else {
              word = word_at(&tokens.x8[static_cast<size_t>((row * tokens.eights + place[b]) * 128 + 32 * chunk + at +
                                                            16 * (r / 2))]);
            }
            for (int i = 0; i < 4; ++i) a[a_byte(lane, r, i).row][a_byte(lane, r, i).col] = signed_byte(word, i);
          }
        for (int eight = 0; eight < 2; ++eight) {
          int w[kChunk][8];
          for (int lane = 0; lane < kLanes; ++lane) {
            const uint32_t word = word_at(tile + 512 * (chunk / 2) + 16 * lane + 4 * (2 * (chunk % 2) + eight));
            const uint32_t b01[2] = {word << 4 & 0xf0f0f0f0u, word & 0xf0f0f0f0u};
            for (int r = 0; r < 2; ++r)
              for (int i = 0; i < 4; ++i) w[b_byte(lane, r, i).row][b_byte(lane, r, i).col] = signed_byte(b01[r], i);
          }
          for (int row = 0; row < kTokens; ++row)
            for (int c = 0; c < 8; ++c)
              for (int j = 0; j < kChunk; ++j) d[row][8 * eight + c] += a[row][j] * w[j][c];
        }
      }
      const int times = four ? 256 : 16;
      for (int f = 0; f < kFeatures; ++f) {
        const int64_t n = strip * kFeatures + f;
        const double scale = n < n_true ? scales.data<float>()[n * count + b] : 0;
        int weights[kBlock];
        for (int i = 0; i < kBlock; ++i) weights[i] = canonical(n, b * kBlock + i);
        for (int row = 0; row < kTokens; ++row) {
          int32_t want = 0;
          for (int i = 0; i < kBlock; ++i)
            want += tokens.codes[static_cast<size_t>(row * k + b * kBlock + i)] * weights[i];
          if (d[row][f] != times * want) wrong.see(n, b * kBlock, d[row][f], times * want);
          const float token = tokens.scales[static_cast<size_t>(row * count + b)],
                      factor = token * packed_scales.data<float>()[b * np + n];
          // Dividing by a power of two is exact but for what underflows.
          sums[row][f] = std::fma(static_cast<float>(d[row][f]) / static_cast<float>(times), factor, sums[row][f]);
          exact[row][f] += want * (static_cast<double>(token) * scale);
          size[row][f] += std::fabs(want * (static_cast<double>(token) * scale));
        }
      }
    }
    // One rounding of each factor (2^-24 of it, or 2^-150 where it is subnormal) and one for each of K/128 steps, of
    // at most the sum of sizes so far; and the reference's own.
    constexpr double e = 0x1p-24;
    const double steps = static_cast<double>(count), g = steps * e / (1 - steps * e), f64 = (steps + 4) * 0x1p-53;
    for (int row = 0; row < kTokens; ++row)
      for (int f = 0; f < kFeatures; ++f) {
        const double bound = size[row][f] * ((1 + e) * (1 + g) - 1 + f64) + steps * 0x1p-125;
        worst.see(row, strip * kFeatures + f, sums[row][f], exact[row][f], bound);
      }
  });
}
LPQ_OP(emulate_comet, "verify_emulate_comet");

}  // namespace
}  // namespace lpq::verify
