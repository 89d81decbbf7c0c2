// Decoder of the MARLIN layout, derived from what its kernel's lanes read and feed to mma.m16n8k16 (MARLIN paper, section
// 3.4; PTX ISA fragment tables): a warp owns a 16 x 64 tile, lane L reads four words, word j holds the eight values of
// its B fragments for columns 16j..16j+7 and 16j+8..16j+15.
#include <array>

#include "cpu/verify/fragments.h"
#include "cpu/verify/wrong.h"

namespace lpq::verify {
namespace {

constexpr int kTileK = 16, kTileN = 64, kWords = 128;

struct Place {
  uint8_t k, n;
};

// Place in the tile of nibble i of word w = 4*lane + j. The kernel cuts a word with masks 0x000f000f (nibbles 0 and 4: one
// half2, two neighbouring k), 0x00f000f0 (nibbles 1 and 5: k + 8), and again after a shift by 8 for the right 8 columns.
constexpr std::array<std::array<Place, 8>, kWords> places() {
  std::array<std::array<Place, 8>, kWords> table{};
  for (int lane = 0; lane < kLanes; ++lane)
    for (int j = 0; j < 4; ++j)
      for (int i = 0; i < 8; ++i) {
        const int right = (i % 4) / 2;
        const Cell cell = fragment_b(lane, 2 * (i % 2) + i / 4);
        table[4 * lane + j][i] = {static_cast<uint8_t>(cell.row), static_cast<uint8_t>(16 * j + 8 * right + cell.col)};
      }
  return table;
}
constexpr auto kPlaces = places();

// B I32 [Kp/16, 2*Np] -> codes U8 [N, ceil(K/2)], each code exclusive-or flip; stored codes outside [N, K] must be `pad`.
void decode_marlin(Call& call, Exec& exec) {
  const Tensor &packed = call.input(0), &codes = call.output(0);
  require(packed.rank() == 2 && packed.dim(1) % kWords == 0, "B is I32 [K/16, 2N] with N a multiple of 64");
  const int64_t tiles = packed.dim(0), strips = packed.dim(1) / kWords;
  const int64_t n_true = codes.dim(0), k_true = call.params.integer("k"), row_bytes = codes.dim(1);
  const uint32_t flip = static_cast<uint32_t>(call.params.integer("flip", 0));
  const uint32_t pad = static_cast<uint32_t>(call.params.integer("pad"));
  require(row_bytes == ceil_div(k_true, 2), "codes is U8 [N, ceil(K/2)]");
  require(k_true <= tiles * kTileK && n_true <= strips * kTileN, "B holds at least [N, K]");
  const uint32_t* in = reinterpret_cast<const uint32_t*>(packed.data<int32_t>());
  uint8_t* out = codes.data<uint8_t>();
  WrongReport report;
  exec.pool.parallel_for(strips, 1, [&](int64_t begin, int64_t end, int) {
    Wrong wrong;
    uint8_t tile[kTileN][kTileK];
    for (int64_t strip = begin; strip < end; ++strip)
      for (int64_t kt = 0; kt < tiles; ++kt) {
        const uint32_t* words = in + (kt * strips + strip) * kWords;
        for (int w = 0; w < kWords; ++w)
          for (int i = 0; i < 8; ++i) tile[kPlaces[w][i].n][kPlaces[w][i].k] = (words[w] >> (4 * i)) & 15;
        for (int c = 0; c < kTileN; ++c) {
          const int64_t n = strip * kTileN + c, k0 = kt * kTileK;
          for (int r = 0; r < kTileK; ++r) {
            const int64_t k = k0 + r;
            if (n >= n_true || k >= k_true) {
              if (tile[c][r] != pad) wrong.see(n, k, tile[c][r], pad);
            } else if (r % 2 == 0) {
              const uint8_t low = tile[c][r] ^ flip, high = k + 1 < k_true ? tile[c][r + 1] ^ flip : 0;
              out[n * row_bytes + k / 2] = static_cast<uint8_t>(low | high << 4);
            }
          }
        }
      }
    report.merge(wrong);
  });
  report.write(call.output(1));
}
LPQ_OP(decode_marlin, "verify_decode_marlin");

// s F16 [R, Np] -> scales F16 [N, R]; stored scales of columns >= N must be +0. Several rows (groups): lanes 4r..4r+3 own
// column r of every 8 and read eight scales at once, those of columns r, r+8, .. r+56. One row (per channel): scales meet
// the accumulator, so the lanes with lane % 4 = t read, for 32 columns at a time, those of columns 2t and 2t+1 of every 8.
void decode_marlin_scales(Call& call, Exec&) {
  const Tensor &packed = call.input(0), &scales = call.output(0);
  const int64_t rows = packed.dim(0), width = packed.dim(1), n_true = scales.dim(0);
  require(width % kTileN == 0 && n_true <= width && scales.dim(1) == rows, "s is F16 [R, N] with N a multiple of 64");
  const uint16_t* in = packed.data<uint16_t>();
  uint16_t* out = scales.data<uint16_t>();
  Wrong wrong;
  const auto put = [&](int64_t row, int64_t column, int64_t position) {
    const uint16_t value = in[row * width + position];
    if (column < n_true)
      out[column * rows + row] = value;
    else if (value != 0)
      wrong.see(column, row, value, 0);
  };
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t block = 0; block < width; block += kTileN) {
      if (rows > 1) {
        for (int r = 0; r < 8; ++r)
          for (int i = 0; i < 8; ++i) put(row, block + fragment_b(4 * r, 0).col + 8 * i, block + 8 * r + i);
      } else {
        for (int half = 0; half < 2; ++half)
          for (int t = 0; t < 4; ++t)
            for (int i = 0; i < 8; ++i)
              put(row, block + 32 * half + 8 * (i / 2) + fragment_c(t, i % 2).col, block + 32 * half + 8 * t + i);
      }
    }
  WrongReport report;
  report.merge(wrong);
  report.write(call.output(1));
}
LPQ_OP(decode_marlin_scales, "verify_decode_marlin_scales");

}  // namespace
}  // namespace lpq::verify
