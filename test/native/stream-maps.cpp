// The streaming kernel's maps (native/cuda/gemm/families/stream.h), run on the host through an emulated mma.m16n8k16:
// activations staged as the kernel's warps stage them, weights packed by the definition
// (test/gpu/native/packed_format.h) and read as the kernel's lanes read them. Sums of one-of-a-kind integers say which
// n, k and token met; and the cuts of the work are counted.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "../gpu/native/packed_format.h"
#include "cuda/gemm/dequant.cuh"
#include "cuda/gemm/families/stream.h"

using namespace lpq::cuda;

namespace {

long long checks = 0, failures = 0;
void expect(bool ok, const char* what, int a, int b, int c) {
  ++checks;
  if (!ok && ++failures <= 20) std::printf("FAIL %s at %d, %d, %d\n", what, a, b, c);
}

// Subnormal halves: what IntCast<B, false> makes of codes.
int code_of(uint32_t half, int shift) { return static_cast<int>(half >> shift); }

// A slice of `kbs` blocks of k for one strip of 32 rows; T tiles of tokens.
template <int B, int T>
void products(std::mt19937& random) {
  const int kbs = 3, n = 32, k = kbs * 128, m = 8 * T;
  std::vector<uint8_t> codes(static_cast<size_t>(n * k));
  for (uint8_t& c : codes) c = static_cast<uint8_t>(random() & ((1u << B) - 1));
  const std::vector<uint8_t> packed = lpq::test::pack_weights(codes, n, k, B);
  std::vector<uint16_t> x(static_cast<size_t>(m * k)), staged(static_cast<size_t>(kbs * kSliceBytes * T / 2), 0xffff);
  for (uint16_t& v : x) v = static_cast<uint16_t>(random() & 0x3fff);
  // As the kernel: item (kb, tile) a warp, lane = (token, eight k), four chunks.
  for (int item = 0; item < kbs * T; ++item)
    for (int lane = 0; lane < 32; ++lane) {
      const int kb = item / T, tile = item % T, token = lane >> 2, j = lane & 3;
      for (int chunk = 0; chunk < 4; ++chunk)
        for (int e = 0; e < 8; ++e) {
          const int byte = stream_pair(kb, chunk, tile, T, token, j, e / 2) + 2 * (e % 2);
          uint16_t& to = staged[static_cast<size_t>(byte / 2)];
          expect(to == 0xffff, "written twice", kb, lane, j);
          to = x[static_cast<size_t>((tile * 8 + token) * k + kb * 128 + chunk * 32 + 8 * j + e)];
        }
    }
  for (size_t i = 0; i < staged.size(); ++i) expect(staged[i] != 0xffff, "not written", static_cast<int>(i), 0, 0);
  // The products, lane by lane as PTX defines the registers: A row g / g + 8, k 2t.. / 2t + 8..; B k 2t.. / 2t + 8..,
  // column g.
  const IntCast<B, false> cast(false, 0);
  std::vector<long long> got(static_cast<size_t>(n * m), 0);
  for (int kb = 0; kb < kbs; ++kb)
    for (int c = 0; c < 4; ++c)
      for (int ks = 0; ks < 2; ++ks)
        for (int nt = 0; nt < 2; ++nt) {
          long long a[16][16];
          for (int lane = 0; lane < 32; ++lane) {
            uint32_t words[4 * B];
            for (int v = 0; v < B; ++v)
              std::memcpy(words + 4 * v, packed.data() + kb * 512 * B + v * 512 + lane * 16, 16);
            for (int i = 0; i < 4; ++i) {
              const int at = 4 * (2 * ks + (i >> 1)) + 2 * nt + (i & 1);
              const uint32_t pair = cast.pair(words + c * B, at);
              for (int h = 0; h < 2; ++h)
                a[lane / 4 + 8 * (i & 1)][2 * (lane % 4) + 8 * (i >> 1) + h] =
                    code_of(pair >> 16 * h & 0xffff, IntCast<B, false>::shift(at & 3));
            }
          }
          for (int t = 0; t < T; ++t) {
            long long b[16][8];
            for (int lane = 0; lane < 32; ++lane) {
              const uint16_t* from =
                  staged.data() + (stream_fragment(kb, c, t, T) + 16 * stream_slot(lane >> 2, lane & 3)) / 2;
              for (int r = 0; r < 2; ++r)
                for (int h = 0; h < 2; ++h) b[2 * (lane % 4) + 8 * r + h][lane / 4] = from[2 * (2 * ks + r) + h];
            }
            for (int i = 0; i < 16; ++i)
              for (int j = 0; j < 8; ++j)
                for (int q = 0; q < 16; ++q)
                  got[static_cast<size_t>((16 * nt + i) * m + 8 * t + j)] += a[i][q] * b[q][j];
          }
        }
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < m; ++j) {
      long long want = 0;
      for (int q = 0; q < k; ++q)
        want += static_cast<long long>(codes[static_cast<size_t>(i * k + q)]) * x[static_cast<size_t>(j * k + q)];
      expect(got[static_cast<size_t>(i * m + j)] == want, "product", B, i, j);
    }
}

// Eight lanes of a 16-byte access at a time must meet eight different fours of banks; a warp's words 32 different
// banks.
void banks() {
  for (int phase = 0; phase < 4; ++phase) {
    int read = 0;
    for (int i = 0; i < 8; ++i) {
      const int lane = phase * 8 + i;
      read |= 1 << (stream_slot(lane >> 2, lane & 3) & 7);
    }
    expect(read == 255, "bank read", phase, read, 0);
  }
  for (int t = 0; t < 4; ++t) {
    uint32_t written = 0;
    for (int lane = 0; lane < 32; ++lane) written |= 1u << (stream_pair(0, 0, 0, 1, lane >> 2, lane & 3, t) / 4 & 31);
    expect(written == 0xffffffffu, "bank written", t, static_cast<int>(written), 0);
  }
}

// What the first product starts from: every lane's four accumulators of both halves of the strip find their row's gain
// and their token's sum, nothing is written twice and nothing of a tile leaves its bytes.
void starts() {
  for (int tiles : {1, 2})
    for (int halves : {1, 2}) {
      std::vector<int> row(static_cast<size_t>(kStartBytes * tiles / 4), -1), token(row.size(), -1);
      for (int tile = 0; tile < tiles; ++tile)
        for (int half = 0; half < halves; ++half)
          for (int g = 0; g < 8; ++g)
            for (int upper = 0; upper < 2; ++upper) {
              const size_t at = static_cast<size_t>(stream_start(tile, half, g, halves) / 4 + 2 * upper);
              expect(at < row.size() && row[at] == -1, "start written", tile, half, g);
              row[at] = 2 * half + upper, token[at] = 8 * tile + g;
            }
      for (int tile = 0; tile < tiles; ++tile)
        for (int nt = 0; nt < 2; ++nt)
          for (int lane = 0; lane < 32; ++lane)
            for (int i = 0; i < 4; ++i) {
              const size_t at = static_cast<size_t>(((tile * halves + nt % halves) * 64 + 16 * (lane & 3)) / 4 + i);
              const int r = halves == 2 ? 2 * nt + i / 2 : i / 2;
              expect(row[at] == r && token[at] == 8 * tile + 2 * (lane & 3) + i % 2, "start read", tile, lane, i);
            }
    }
}

// Every packed block has one warp; every strip's parts are found by the warp that begins it: what the end of the kernel
// does.
void cuts() {
  for (int strips : {1, 2, 3, 7, 16, 55})
    for (int kbs : {1, 2, 3, 8, 11, 32})
      for (int warps : {8, 16}) {
        const int total = strips * kbs;
        std::vector<int> delivered(static_cast<size_t>(strips), 0);
        for (int w = 0; w < warps; ++w) {
          const int first = first_of_part(total, w, warps), last = first_of_part(total, w + 1, warps);
          expect(w == 0 ? first == 0 : true, "begins", strips, kbs, w);
          expect(w == warps - 1 ? last == total : true, "ends", strips, kbs, w);
          int strip = first / kbs, k = first % kbs;
          bool inside = k != 0;
          for (int at = first; at < last; ++at)
            if (++k == kbs) {
              if (!inside) delivered[static_cast<size_t>(strip)] += kbs;
              k = 0, ++strip, inside = false;
            }
          if (first < last && !inside && k != 0) {
            int have = k;
            for (int v = w + 1; v < warps; ++v) {
              const int from = first_of_part(total, v, warps), to = first_of_part(total, v + 1, warps);
              if (from >= (strip + 1) * kbs) break;
              have += std::min(to, (strip + 1) * kbs) - from;
            }
            delivered[static_cast<size_t>(strip)] += have;
          }
        }
        for (int s = 0; s < strips; ++s) expect(delivered[static_cast<size_t>(s)] == kbs, "strip", strips, kbs, s);
      }
}

template <int B>
void width(std::mt19937& random) {
  products<B, 1>(random);
  products<B, 2>(random);
  products<B, 4>(random);
}

}  // namespace

int main() {
  std::mt19937 random(11);
  width<1>(random), width<2>(random), width<3>(random), width<4>(random), width<5>(random), width<6>(random),
      width<7>(random), width<8>(random);
  banks();
  starts();
  cuts();
  std::printf("%lld checks, %lld failures\n", checks, failures);
  return failures != 0;
}
