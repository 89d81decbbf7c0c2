// The kernel of many tokens for devices without wgmma (native/cuda/gemm/kernels/large.cuh), its own source, on the
// simulated device (simulator/): types, f16 and bf16, every number of token tiles, groups, zero points, cuts of the
// work, tails. Weights are packed by test/gpu/native/packed_format.h, references are sums in double precision.
//
// The bound: sums of the simulated tensor core are rounded to fp32 once an instruction, K/16 of them, and the few times
// of the reductions, 2^-24 of the sum of |x w| each. Weights are rounded as large.cuh says: u |w|, twice where
// scales are rounded too, u |z s| where a zero point does not come off exactly, and 2^-25 for each rounding to a
// subnormal f16. Then y is rounded.
#include <random>
#include <string>
#include "asynchronous.h"
#include "memory.h"

#include "cuda/gemm/kernels/large.cuh"
#include "packed_types.h"

using namespace lpq;
using namespace lpq::cuda;

namespace {

std::mt19937_64 engine(17);
uint64_t draw(uint64_t below) { return engine() % below; }

struct Case {
  int m, n, k, group;  // group 0: one scale a row
  int zeros;           // 0: constant, 1: u8, 2: f16
  double zero;
  bool bias, scales_bf16;
  int blocks;  // 0: whole tiles, of 2 blocks; else equal runs
  int band = 2;
};

long long checks = 0, failures = 0;

template <int B, int T, bool BF, class Cast>
void run(const Type& type, const Case& c) {
  const int blocks_n = (c.n + 31) / 32, blocks_k = (c.k + 127) / 128,
            groups = c.group == 0 ? 1 : (c.k + c.group - 1) / c.group;
  std::vector<uint8_t> codes(static_cast<size_t>(c.n) * static_cast<size_t>(c.k)),
      zero8(static_cast<size_t>(c.n * groups), 0);
  std::vector<uint16_t> scales(zero8.size()), zero16(zero8.size());
  std::vector<double> zeros(zero8.size(), c.zero);
  double top = 0;
  for (int code = 0; code < 1 << B; ++code)
    if (!std::isnan(number(type, code))) top = std::max(top, std::fabs(number(type, code)));
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = to16((0.5 + static_cast<double>(draw(1000)) / 1000) / top, c.scales_bf16);
    if (c.zeros == 1) zeros[i] = zero8[i] = static_cast<uint8_t>(draw(5) ? draw(1u << B) : draw(256));
    if (c.zeros == 2)
      zeros[i] =
          f16_to_f32(zero16[i] = f32_to_f16(static_cast<float>(draw(2) ? static_cast<double>(draw(1u << B))
                                                                       : static_cast<double>(draw(4096)) / 256 - 3)));
  }
  for (uint8_t& code : codes) do
      code = static_cast<uint8_t>(draw(1u << B));
    while (std::isnan(number(type, code)));
  Memory<unsigned char> packed(lpq::test::pack_weights(codes, c.n, c.k, B));
  Memory<uint16_t> packed_scales(lpq::test::pack_scales(scales, c.n, groups)),
      packed16(lpq::test::pack_scales(zero16, c.n, groups));
  Memory<uint8_t> packed8(lpq::test::pack_scales(zero8, c.n, groups));
  const int pitch = (c.k + 7) / 8 * 8;
  std::vector<uint16_t> xs(static_cast<size_t>(c.m) * static_cast<size_t>(pitch), 0), biases(static_cast<size_t>(c.n));
  for (int i = 0; i < c.m; ++i)
    for (int k = 0; k < c.k; ++k)
      xs[static_cast<size_t>(i * pitch + k)] = to16((static_cast<int>(draw(2001)) - 1000) / 512.0, BF);
  for (uint16_t& b : biases) b = to16((static_cast<int>(draw(2001)) - 1000) / 512.0, BF);
  Memory<uint16_t> x(xs), bias(biases);
  constexpr uint16_t kPoison = 0xffd5;
  const size_t outputs = static_cast<size_t>(c.m) * static_cast<size_t>(c.n);
  Memory<uint16_t> y(std::vector<uint16_t>(outputs + 64, kPoison));

  GemmPackedArgs g{};
  g.weights = packed.data(), g.x = x.data(), g.y = y.data(), g.scales = packed_scales.data();
  g.zeros = c.zeros == 1 ? packed8.data() : c.zeros == 2 ? reinterpret_cast<unsigned char*>(packed16.data()) : nullptr;
  g.bias = c.bias ? bias.data() : nullptr;
  g.m = c.m, g.n = c.n, g.k = pitch, g.n_blocks = blocks_n, g.k_blocks = blocks_k, g.groups = groups;
  g.groups_per_block = c.group == 0 ? 1 : 128 / c.group, g.channel = c.group == 0, g.scale_bf16 = c.scales_bf16,
  g.zero_kind = c.zeros;
  const bool lifted = type.kind == 'i';
  g.zero = static_cast<float>(c.zeros ? 0 : c.zero) + (lifted ? static_cast<float>(1 << (B - 1)) : 0.0f);
  g.is_signed = type.kind != 'u', g.exponent = type.exponent;
  g.strips = (blocks_n + kLargeWarps - 1) / kLargeWarps, g.steps = blocks_k;
  LargeArgs a{(c.m + 8 * T - 1) / (8 * T), c.band, 0, c.n % 8 == 0};
  const int tiles = g.strips * a.token_tiles;
  int blocks = std::min(2, tiles);
  if (c.blocks > 0) a.per = (tiles * g.steps + c.blocks - 1) / c.blocks, blocks = (tiles * g.steps + a.per - 1) / a.per;
  std::vector<float> partial(static_cast<size_t>(2 * blocks * kLargeWarps * T) * 256, NAN);
  std::vector<unsigned> counters(static_cast<size_t>(tiles), 0);
  g.partial = partial.data(), g.counters = counters.data();
  const auto area = [](const auto& memory) {
    return std::pair<const unsigned char*, size_t>(reinterpret_cast<const unsigned char*>(memory.words.data()),
                                                   memory.words.size() * 8 - 16);
  };
  simt::readable = {area(packed), area(packed_scales), area(packed8), area(packed16), area(x)};
  if (large_shared(B, T) > simt::kShared) std::abort();
  simt::begin(draw(1u << 30));
  const std::string error = simt::try_run(blocks, 32 * kLargeWarps, blocks, simt::kShared, draw(1u << 30),
                                          [&] { gemm_large<B, T, BF, Cast>(g, a); });

  const std::string text = type.name() + (BF ? " bf16 T" : " f16 T") + std::to_string(T) + " " + std::to_string(c.m) +
                           "x" + std::to_string(c.n) + "x" + std::to_string(c.k) + " g" + std::to_string(c.group) +
                           " zeros " + std::to_string(c.zeros) + " blocks " + std::to_string(c.blocks);
  const auto wrong = [&](const std::string& what) {
    if (++failures <= 20) std::printf("FAIL %s: %s\n", text.c_str(), what.c_str());
  };
  ++checks;
  if (!error.empty()) return wrong(error);
  for (unsigned counter : counters)
    if (counter != 0) return wrong("a counter was left at " + std::to_string(counter));
  for (size_t i = outputs; i < outputs + 64; ++i)
    if (y.data()[i] != kPoison) return wrong("something was written behind y");
  const double u = BF ? 0x1p-8 : 0x1p-11, least = BF ? 1e-40 : 0x1p-25;
  for (int i = 0; i < c.m; ++i)
    for (int n = 0; n < c.n; ++n) {
      double want = c.bias ? from16(biases[static_cast<size_t>(n)], BF) : 0, all = std::fabs(want), rounding = 0;
      for (int k = 0; k < c.k; ++k) {
        const size_t group = static_cast<size_t>(n * groups + (c.group == 0 ? 0 : k / c.group));
        const double s = from16(scales[group], c.scales_bf16),
                     w = (number(type,
                                 codes[static_cast<size_t>(n) * static_cast<size_t>(c.k) + static_cast<size_t>(k)]) -
                          zeros[group]) *
                         s;
        const double v = from16(xs[static_cast<size_t>(i * pitch + k)], BF);
        want += v * w, all += std::fabs(v * w);
        const double lift = lifted ? 1 << (B - 1) : 0, z = zeros[group] + lift;
        const bool whole = z == std::trunc(z) && std::fabs(z) <= (BF ? (B < 4 ? 64 : 128) : 1000);
        rounding += std::fabs(v) * (1.02 * u * std::fabs(w) * (BF && !c.scales_bf16 ? 2 : 1) +
                                    (whole ? 0 : 1.02 * u * std::fabs(z * s)) + 2 * least);
      }
      const double bound = all * (c.k / 16 + 64) * 0x1p-24 + rounding + u * std::fabs(want) * 1.01 + least;
      const uint16_t stored = y.data()[static_cast<size_t>(i) * static_cast<size_t>(c.n) + static_cast<size_t>(n)];
      const double got = from16(stored, BF);
      ++checks;
      if (stored == kPoison || !(std::fabs(got - want) <= bound))
        return wrong("at " + std::to_string(i) + ", " + std::to_string(n) + ": " + std::to_string(got) + ", not " +
                     std::to_string(want) + " within " + std::to_string(bound));
    }
}

template <int B, bool BF, class Cast>
void sweep(const Type& type) {
  const bool floats = type.kind == 'f';
  const double middle = type.kind == 'u' ? 1 << (B - 1) : 0;
  run<B, 4, BF, Cast>(type, {29, 300, 328, 128, floats ? 0 : 1, middle, true, BF, 3});
  run<B, 8, BF, Cast>(type, {70, 264, 200, 32, 0, middle, false, false, 0});
  run<B, 16, BF, Cast>(type, {130, 40, 384, 64, floats ? 0 : 2, middle, false, BF, 4});
  run<B, 4, BF, Cast>(type, {33, 513, 256, 0, 0, middle, true, false, 5, 1});
}

}  // namespace

int main() {
  sweep<4, false, WholeIntCast<4, false>>({'u', 4, 0});
  sweep<4, true, WholeIntCast<4, true>>({'i', 4, 0});
  sweep<8, false, WholeIntCast<8, false>>({'i', 8, 0});
  sweep<8, true, WholeIntCast<8, true>>({'u', 8, 0});
  sweep<3, false, WholeIntCast<3, false>>({'u', 3, 0});
  sweep<6, true, WholeIntCast<6, true>>({'i', 6, 0});
  sweep<4, false, FloatCast<4, false>>({'f', 4, 2});
  sweep<6, true, FloatCast<6, true>>({'f', 6, 3});
#ifdef LPQ_ALL_FORMS
  sweep<1, false, WholeIntCast<1, false>>({'u', 1, 0});
  sweep<1, true, WholeIntCast<1, true>>({'u', 1, 0});
  sweep<2, false, WholeIntCast<2, false>>({'i', 2, 0});
  sweep<2, true, WholeIntCast<2, true>>({'u', 2, 0});
  sweep<3, true, WholeIntCast<3, true>>({'i', 3, 0});
  sweep<5, false, WholeIntCast<5, false>>({'i', 5, 0});
  sweep<5, true, WholeIntCast<5, true>>({'u', 5, 0});
  sweep<6, false, WholeIntCast<6, false>>({'u', 6, 0});
  sweep<7, false, WholeIntCast<7, false>>({'i', 7, 0});
  sweep<7, true, WholeIntCast<7, true>>({'u', 7, 0});
  sweep<3, false, FloatCast<3, false>>({'f', 3, 1});
  sweep<4, true, FloatCast<4, true>>({'f', 4, 1});
  sweep<5, false, FloatCast<5, false>>({'f', 5, 3});
  sweep<7, true, FloatCast<7, true>>({'f', 7, 5});
  sweep<8, false, FloatCast<8, false>>({'f', 8, 4});
  sweep<8, true, FloatCast<8, true>>({'f', 8, 5});
#endif
  std::printf("%lld checks, %lld failures\n", checks, failures);
  return failures != 0;
}
