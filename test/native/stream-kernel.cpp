// The streaming kernel itself (native/cuda/gemm/kernels/stream.cuh), run on the host by threads that the host plays
// (simulator/): every type, f16 and bf16, numbers of tokens with tails, groups, zero points, bias, slices in clusters
// and through the workspace, grids of several sizes. Against double precision, within the bound that
// test/gpu/native/kernels.cpp derives; y full of NaN before, shared memory too, and counters at 0 after.
#include <array>
#include <cstdio>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "../gpu/native/packed_format.h"
#include "cuda/gemm/kernels/stream.cuh"
#include "packed_types.h"
#include "simulator.h"

using namespace lpq::cuda;

namespace {

std::mt19937_64 lot(5);
long long checks = 0, failures = 0;
double worst = 0;

struct Case {
  int m, n, k, group, zeros, slices, sets;
  bool bias, scale_bf16, workspace;
  int power = 0;  // activations are 2^power in size
};

double normal() { return std::normal_distribution<double>()(lot); }

// WB: multiplied as bf16; Split: activations and outputs are f16 all the same.
template <int B, bool WB, class Cast, bool Split = false>
void one(const Type& t, const Case& c) {
  constexpr bool BF = WB && !Split;
  const int n_blocks = (c.n + 31) / 32, k_blocks = (c.k + 127) / 128, pitch = (c.k + 7) / 8 * 8;
  const int length = c.group ? c.group : c.k, groups = (c.k + length - 1) / length, codes = 1 << B;
  const bool integer = t.kind != 'f';
  const double constant = integer && t.kind == 'u' && !c.zeros ? codes / 2 : 0;
  std::vector<uint8_t> code(static_cast<size_t>(c.n * c.k));
  std::vector<double> value(code.size());
  double top = 0;
  for (int i = 0; i < codes; ++i)
    if (std::fabs(number(t, i)) > top) top = std::fabs(number(t, i));
  for (size_t i = 0; i < code.size(); ++i) {
    do code[i] = static_cast<uint8_t>(lot() % static_cast<unsigned>(codes));
    while (std::isnan(number(t, code[i])));
    value[i] = number(t, code[i]);
  }
  std::vector<uint16_t> scale(static_cast<size_t>(c.n * groups)), zero16(scale.size());
  std::vector<uint8_t> zero8(scale.size());
  std::vector<double> zero(scale.size(), constant);
  for (size_t i = 0; i < scale.size(); ++i) {
    scale[i] =
        to16(std::max(1 / top, c.scale_bf16 ? 0x1p-100 : 0x1p-12) * (0.5 + static_cast<double>(lot() % 1000) / 1000),
             c.scale_bf16);
    if (c.zeros == 1)
      zero[i] = zero8[i] = i % 5 == 0 ? 255 : static_cast<uint8_t>(lot() % static_cast<unsigned>(codes));
    if (c.zeros == 2)
      zero[i] = from16(zero16[i] = to16((i % 7 == 0 ? -3.25 : codes) * static_cast<double>(lot() % 1000) / 1000, false),
                       false);
  }
  std::vector<uint16_t> x(static_cast<size_t>(c.m * pitch), 0), y(static_cast<size_t>(c.m * c.n), BF ? 0x7fc0 : 0x7e00),
      bias(static_cast<size_t>(c.n));
  for (int i = 0; i < c.m; ++i)
    for (int k = 0; k < c.k; ++k) x[static_cast<size_t>(i * pitch + k)] = to16(std::ldexp(normal(), c.power), BF);
  for (uint16_t& b : bias) b = to16(normal(), BF);
  const auto packed = lpq::test::pack_weights(code, c.n, c.k, B);
  const auto scales = lpq::test::pack_scales(scale, c.n, groups);
  const auto zeros8 = lpq::test::pack_scales(zero8, c.n, groups);
  const auto zeros16 = lpq::test::pack_scales(zero16, c.n, groups);

  GemmPackedArgs g{};
  g.weights = packed.data(), g.x = x.data(), g.y = y.data(), g.scales = scales.data();
  g.zeros = c.zeros == 1   ? zeros8.data()
            : c.zeros == 2 ? reinterpret_cast<const unsigned char*>(zeros16.data())
                           : nullptr;
  g.bias = c.bias ? bias.data() : nullptr;
  g.m = c.m, g.n = c.n, g.k = pitch, g.n_blocks = n_blocks, g.k_blocks = k_blocks, g.groups = groups;
  g.groups_per_block = c.group ? 128 / c.group : 1, g.channel = c.group == 0, g.scale_bf16 = c.scale_bf16,
  g.zero_kind = c.zeros;
  g.zero = static_cast<float>((c.zeros ? 0 : constant) + (t.kind == 'i' ? codes / 2 : 0));
  g.is_signed = t.kind != 'u', g.exponent = t.exponent, g.warps_n = 1;
  const int T = c.m <= 8 ? 1 : 2, unit = B <= 2 && stream_simple(g, 2) ? 2 : 1;
  StreamArgs a{};
  a.slices = c.slices, a.sets = std::min(c.sets, n_blocks), a.workspace = c.workspace, a.overlap = 1;
  a.k_most = (k_blocks / unit + c.slices - 1) / c.slices * unit, a.strips_most = (n_blocks + a.sets - 1) / a.sets;
  std::vector<float> partial(static_cast<size_t>(n_blocks * c.slices * T * 256), NAN);
  std::vector<unsigned> counters(static_cast<size_t>(n_blocks), 0);
  g.partial = partial.data(), g.counters = counters.data();
  const int bytes = stream_shared(T, Split ? 2 * T : T, kStreamWarps, a.k_most, g.groups_per_block, a.strips_most,
                                  c.workspace ? 0 : c.slices)
                        .total;
  const std::string name = t.name() + (BF ? " bf16 " : " f16 ") + std::to_string(c.m) + "x" + std::to_string(c.n) +
                           "x" + std::to_string(c.k) + " g" + std::to_string(c.group) + " z" + std::to_string(c.zeros) +
                           " slices " + std::to_string(c.slices) + " sets " + std::to_string(a.sets) +
                           (c.workspace ? " workspace" : "") + (c.power ? " x 2^" + std::to_string(c.power) : "");
  const auto fail = [&](const std::string& what) {
    if (++failures <= 20) std::printf("FAIL %s: %s\n", name.c_str(), what.c_str());
  };
  ++checks;
  try {
    simt::run(a.sets * c.slices, 32 * kStreamWarps, c.workspace ? 1 : c.slices, bytes, lot(), [&] {
      const bool lean = stream_simple(g, B <= 2 ? 2 : 1) && g.groups_per_block == 1;
      if (T == 1 && lean) gemm_stream<B, 1, kStreamWarps, true, WB, Cast, Split>(g, a);
      else if (T == 1) gemm_stream<B, 1, kStreamWarps, false, WB, Cast, Split>(g, a);
      else if (lean) gemm_stream<B, 2, kStreamWarps, true, WB, Cast, Split>(g, a);
      else gemm_stream<B, 2, kStreamWarps, false, WB, Cast, Split>(g, a);
    });
  } catch (const std::exception& error) {
    return fail(error.what());
  }
  for (unsigned count : counters)
    if (count) return fail("a counter is left at " + std::to_string(count));
  const double lift = t.kind == 'i' ? codes / 2 : 0,
               offset = !integer || !BF ? 0
                        : B == 8        ? -128
                                        : 128,
               u = BF ? 0x1p-8 : 0x1p-11, least = BF ? 1e-40 : 0x1p-25;
  for (int i = 0; i < c.m; ++i)
    for (int n = 0; n < c.n; ++n) {
      double want = 0, size = 0;
      for (int k = 0; k < c.k; ++k) {
        const size_t at = static_cast<size_t>(n * groups + k / length);
        const double s = from16(scale[at], c.scale_bf16), v = from16(x[static_cast<size_t>(i * pitch + k)], BF),
                     w = value[static_cast<size_t>(n * c.k + k)];
        want += v * (w - zero[at]) * s;
        size += std::fabs(v) * (std::fabs(w + lift + offset) + std::fabs(zero[at] + lift + offset)) * s;
      }
      if (c.bias)
        want += from16(bias[static_cast<size_t>(n)], BF), size += std::fabs(from16(bias[static_cast<size_t>(n)], BF));
      const double bound = size * (0x1p-15 + (c.k / 32.0 + 64) * 0x1p-24) + u * std::fabs(want) * 1.01 + least;
      const double got = from16(y[static_cast<size_t>(i * c.n + n)], BF),
                   share = std::isnan(got) ? std::numeric_limits<double>::infinity()
                           : !BF && std::isinf(got) && std::fabs(want) > 65504 - bound && want * got > 0
                               ? 0
                               : std::fabs(got - want) / bound;
      if (share <= 1) worst = std::max(worst, share);
      else
        return fail("(" + std::to_string(i) + ", " + std::to_string(n) + ") is " + std::to_string(got) + ", not " +
                    std::to_string(want));
    }
}

template <int B, bool WB, class Cast, bool Split = false>
void sweep(const Type& t, bool all) {
  constexpr bool BF = WB;  // scales, which f16 would hold too few of
  const bool integer = t.kind != 'f';
  // The common case: K with and without whole units of two packed blocks, a tail of K, rows and tokens that fill
  // nothing.
  one<B, WB, Cast, Split>(t, {3, 70, 520, 128, 0, 1, 2, true, BF, false});
  one<B, WB, Cast, Split>(t, {16, 96, 1024, 128, 0, 2, 2, false, !BF, false});
  one<B, WB, Cast, Split>(t, {11, 40, 768, 0, 0, 2, 1, true, BF, true});
  one<B, WB, Cast, Split>(t, {8, 70, 264, 32, 0, 1, 1, false, BF, false});
  one<B, WB, Cast, Split>(t, {14, 70, 512, 32, 0, 2, 1, true, BF, false});
  one<B, WB, Cast, Split>(t, {6, 40, 768, 64, 0, 3, 1, false, !BF, true});
  if (integer)
    one<B, WB, Cast, Split>(t, {9, 33, 392, 64, 1, 2, 1, true, !BF, true}),
        one<B, WB, Cast, Split>(t, {5, 64, 256, 128, 2, 1, 2, false, BF, false});
  if (!all) return;
  // Cuts: strips that many warps share and warps with many strips, slices that are not alike, more slices than a warp
  // has blocks.
  for (int slices : {1, 2, 4})
    for (int sets : {1, 5})
      for (bool workspace : {false, true})
        if (slices > 1 || !workspace)
          one<B, WB, Cast, Split>(t, {slices == 2 ? 7 : 16, 300, 11 * 128 + (slices == 4 ? 128 : 0), 128, 0, slices,
                                      sets, false, BF, workspace});
  one<B, WB, Cast, Split>(t, {2, 1500, 256, 128, 0, 1, 1, false, BF, false});
  one<B, WB, Cast, Split>(t, {12, 100, 11 * 128, 128, 0, 3, 2, false, BF, true});
}

template <int B>
void width() {
  for (char kind : {'u', 'i'}) {
    if (kind == 'i' && B == 1) continue;
    const Type t{kind, B, 0};
    const bool all = kind == 'u' && (B == 1 || B == 3 || B == 4 || B == 7);
    sweep<B, false, IntCast<B, false>>(t, all);
    sweep<B, true, IntCast<B, true>>(t, false);
  }
  if constexpr (B >= 3)
    for (int e = 1; e <= B - 2; ++e) {
      const Type t{'f', B, e};
      // f16 holds 5 exponent bits where the type's highest means infinity, too.
      if (e < 5 || (B == 8 && e == 5)) sweep<B, false, FloatCast<B, false>>(t, B == 6 && e == 3);
      else sweep<B, true, FloatCast<B, true>, true>(t, B == 8);
      sweep<B, true, FloatCast<B, true>>(t, false);
      // The ends of what activations may be where they are staged times 2^64 (dequant_chunk.cuh).
      if (e == 1)
        for (int power : {-60, 60})
          one<B, true, FloatCast<B, true>>(t, {9, 40, 256, 128, 0, 2, 1, false, true, false, power});
    }
  std::printf("%d bits\n", B);
  std::fflush(stdout);
}

}  // namespace

// Of LPQ_BITS_FROM to LPQ_BITS_TO bits.
template <int B>
void widths() {
  if constexpr (B <= LPQ_BITS_TO) {
    width<B>();
    widths<B + 1>();
  }
}

int main() {
  widths<LPQ_BITS_FROM>();
  std::printf("%lld products, %lld failures, at most %.2f of the bound\n", checks, failures, worst);
  return failures != 0;
}
