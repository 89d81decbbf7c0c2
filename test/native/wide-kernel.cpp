// The wide kernel itself (native/cuda/gemm/kernels/wide.cuh) and the functions that cut its work (wide_plan.h), run on
// the host by threads that the host plays (simulator/): every width of integers and floats, f16 and bf16, tiles of
// tokens with tails, groups, zero points, bias, strips of several widths, items that blocks share. Against double
// precision, within the bound that test/gpu/native/kernels.cpp derives; y full of NaN before, shared memory too, and
// counters at 0 after.
#include <cstdio>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "../gpu/native/packed_format.h"
#include "boxes.h"
#include "cuda/gemm/families/scaled_plan.h"
#include "cuda/gemm/families/wide_plan.h"
#include "cuda/gemm/kernels/scaled.cuh"
#include "cuda/gemm/kernels/wide.cuh"
#include "packed_types.h"

using namespace lpq::cuda;

namespace {

std::mt19937_64 lot(7);
long long
    checks = 0,
    failures = 0,
    cuts[4];  // cuts: scaled products of whole items, of those that owners add up, of even shares, and of clusters
double worst = 0;

struct Wish {
  int tokens = 0, width = 0, stages = 0, blocks = 0;
  bool cluster = false;
};
struct Case {
  int m, n, k, group, zeros;
  bool bias, scale_bf16;
  Wish wish;
  double constant = -1;  // zero point of unsigned types; -1: the middle
};

double normal() { return std::normal_distribution<double>()(lot); }

// Halves, Pairs: of the kernel of weights scaled before they are multiplied; 0: the wide kernel.
template <int B, int T, bool BF, class Cast, int Halves = 0, int Pairs = 1>
void one(const Type& t, const Case& c) {
  const int n_blocks = (c.n + 31) / 32, k_blocks = (c.k + 127) / 128, pitch = (c.k + 63) / 64 * 64;
  const int length = c.group ? c.group : c.k, groups = (c.k + length - 1) / length, codes = 1 << B;
  const bool integer = t.kind != 'f';
  const double constant = !integer || t.kind == 'i' || c.zeros ? 0 : c.constant >= 0 ? c.constant : codes / 2;
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
    scale[i] = to16(std::max(1 / top, 0x1p-12) * (0.5 + static_cast<double>(lot() % 1000) / 1000), c.scale_bf16);
    if (c.zeros == 1)
      zero[i] = zero8[i] = i % 5 == 0 ? 255 : static_cast<uint8_t>(lot() % static_cast<unsigned>(codes));
    if (c.zeros == 2)
      zero[i] = from16(zero16[i] = to16((i % 7 == 0 ? -3.25 : codes) * static_cast<double>(lot() % 1000) / 1000, false),
                       false);
  }
  std::vector<uint16_t> xs(static_cast<size_t>(c.m * pitch), 0), bias(static_cast<size_t>(c.n));
  for (int i = 0; i < c.m; ++i)
    for (int k = 0; k < c.k; ++k) xs[static_cast<size_t>(i * pitch + k)] = to16(normal(), BF);
  for (uint16_t& b : bias) b = to16(normal(), BF);
  const Aligned<uint16_t> x(xs), y(std::vector<uint16_t>(static_cast<size_t>(c.m * c.n), BF ? 0x7fc0 : 0x7e00));
  const Aligned<uint8_t> packed(lpq::test::pack_weights(code, c.n, c.k, B)),
      zeros8(lpq::test::pack_scales(zero8, c.n, groups));
  const Aligned<uint16_t> scales(lpq::test::pack_scales(scale, c.n, groups)),
      zeros16(lpq::test::pack_scales(zero16, c.n, groups));

  GemmPackedArgs g{};
  g.weights = packed.data, g.x = x.data, g.y = y.data, g.scales = scales.data;
  g.zeros = c.zeros == 1 ? zeros8.data : c.zeros == 2 ? reinterpret_cast<const unsigned char*>(zeros16.data) : nullptr;
  g.bias = c.bias ? bias.data() : nullptr;
  g.m = c.m, g.n = c.n, g.k = pitch, g.n_blocks = n_blocks, g.k_blocks = k_blocks, g.groups = groups;
  g.groups_per_block = c.group ? 128 / c.group : 1, g.channel = c.group == 0, g.scale_bf16 = c.scale_bf16,
  g.zero_kind = c.zeros;
  g.zero = static_cast<float>(constant + (t.kind == 'i' ? codes / 2 : 0));
  g.is_signed = t.kind != 'u', g.exponent = t.exponent;
  constexpr bool Scaled = Halves > 0;
  lpq::ops::GemmSettings wish;
  wish.tokens = 8 * T, wish.width = Scaled ? 4 * Halves * Pairs : c.wish.width;
  wish.stages = c.wish.stages, wish.blocks = c.wish.blocks, wish.reduce = c.wish.cluster ? "cluster" : "global";
  const std::string name = t.name() + (BF ? " bf16 " : " f16 ") + std::to_string(c.m) + "x" + std::to_string(c.n) +
                           "x" + std::to_string(c.k) + " g" + std::to_string(c.group) + " z" + std::to_string(c.zeros) +
                           " tile " + std::to_string(8 * T) + " width " + std::to_string(wish.width) + " blocks " +
                           std::to_string(wish.blocks);
  const auto fail = [&](const std::string& what) {
    if (++failures <= 20) std::printf("FAIL %s: %s\n", name.c_str(), what.c_str());
  };
  ++checks;
  std::vector<float> partial;
  std::vector<unsigned> counters;
  simt::begin(lot());
  const auto run = [&](int blocks, int warps, unsigned shared, const auto& body) {
    gridDim.x = static_cast<unsigned>(blocks);
    simt::run(blocks, 32 * warps + 128, blocks, static_cast<int>(shared), lot(), [&] {
      blockDim.x = static_cast<unsigned>(32 * warps + 128);
      body();
    });
  };
  const auto room_for_sums = [&](int blocks, int width, int items) {
    partial.assign(static_cast<size_t>(blocks * 2 * width * T * 256), NAN),
        counters.assign(static_cast<size_t>(2 * items), 0);
    g.partial = partial.data(), g.counters = counters.data();
  };
  bool rounded_zeros = false;
  try {
    if constexpr (Scaled) {
      constexpr bool kInteger = Cast::kSums;
      const bool constant = scaled_constant(g, integer, B, BF);
      std::optional<ScaledPlan> plan = choose_scaled(
          132, 232448, g, B, wish,
          [](const ScaledForm& form) { return form.tiles == T && form.halves == Halves && form.pairs == Pairs; },
          [](const ScaledForm&, int blocks) { return 132 / blocks; });
      if (!plan) return fail("has no plan");
      g.stages = plan->stages;
      plan->args.lift = t.kind == 'i' ? codes / 2 : 0, plan->args.zero = g.zero - plan->args.lift;
      plan->args.vectors = c.n % 8 == 0, plan->args.overlap = c.m % 2;
      room_for_sums(plan->args.shared_blocks, 4 * Halves * Pairs, plan->args.items);
      const PackedMaps maps = scaled_maps(g, B, *plan);
      rounded_zeros = !constant;
      ++(plan->args.shared_items == 0 ? cuts[0] : plan->args.owners ? cuts[1] : plan->args.cluster ? cuts[3] : cuts[2]);
      simt::cluster_blocks = static_cast<uint32_t>(std::max(1, plan->args.cluster));
      run(plan->blocks, 8 * Pairs, plan->shared, [&] {
        if (constant) gemm_scaled<B, T, Halves, Pairs, false, BF, kInteger>(g, plan->args, maps);
        else if constexpr (kInteger) gemm_scaled<B, T, Halves, Pairs, true, BF, true>(g, plan->args, maps);
      });
    } else {
      std::optional<WidePlan> plan = choose_wide(132, 232448, g, B, wish);
      if (!plan) return fail("has no plan");
      g.stages = plan->stages;
      plan->args.zero_mode = wide_zero_mode(g, integer, B, BF);
      plan->args.vectors = c.n % 8 == 0, plan->args.overlap = c.m % 2;
      const int sums_pitch = plan->args.token_tiles * 8 * T;
      std::vector<float> sums(static_cast<size_t>(k_blocks * g.groups_per_block * sums_pitch), 0);
      for (int kb = 0; kb < k_blocks; ++kb)
        for (int k = 0; k < 128; ++k)
          for (int m = 0; m < c.m; ++m)
            if (kb * 128 + k < pitch)
              sums[static_cast<size_t>((kb * g.groups_per_block + k * g.groups_per_block / 128) * sums_pitch + m)] +=
                  static_cast<float>(from16(x.data[m * pitch + kb * 128 + k], BF));
      plan->args.sums = sums.data(), plan->args.sums_pitch = sums_pitch;
      room_for_sums(plan->blocks, plan->args.width, plan->args.items);
      const bool single = g.groups_per_block == 1 && plan->args.zero_mode != kZeroSums;
      const PackedMaps maps = wide_maps(g, B, *plan);
      run(plan->blocks, plan->warps, plan->shared, [&] {
        if (single) gemm_wide<B, T, true, BF, Cast>(g, plan->args, maps);
        else gemm_wide<B, T, false, BF, Cast>(g, plan->args, maps);
      });
    }
  } catch (const std::exception& error) {
    return fail(error.what());
  }
  if (*simt::unfinished()) return fail(simt::unfinished());
  for (unsigned count : counters)
    if (count) return fail("a counter is left at " + std::to_string(count));
  const double lift = t.kind == 'i' ? codes / 2 : 0,
               offset = !integer || !BF ? 0
                        : B == 8        ? -128
                                        : 128,
               u = BF ? 0x1p-8 : 0x1p-11, least = BF ? 1e-40 : 0x1p-25;
  for (int i = 0; i < c.m; ++i)
    for (int n = 0; n < c.n; ++n) {
      double want = 0, size = 0, of_weights = 0;  // of_weights: what rounding them may add
      for (int k = 0; k < c.k; ++k) {
        const size_t at = static_cast<size_t>(n * groups + k / length);
        const double s = from16(scale[at], c.scale_bf16), v = from16(x.data[i * pitch + k], BF),
                     w = value[static_cast<size_t>(n * c.k + k)];
        want += v * (w - zero[at]) * s;
        size += Scaled ? std::fabs(v * (w - zero[at]) * s)
                       : std::fabs(v) * (std::fabs(w + lift + offset) + std::fabs(zero[at] + lift + offset)) * s;
        of_weights += std::fabs(v) * ((rounded_zeros ? BF ? 3 : 2 : 1) * u * 1.02 * std::fabs(w - zero[at]) * s +
                                      2 * u * u * (std::fabs(w) + std::fabs(zero[at])) * s +
                                      (BF ? 0 : 0x1p-25 * (1 + std::fabs(w - zero[at]))));
      }
      if (c.bias)
        want += from16(bias[static_cast<size_t>(n)], BF), size += std::fabs(from16(bias[static_cast<size_t>(n)], BF));
      const double bound =
          Scaled ? of_weights + size * (c.k / 16.0 * 17 + 64) * 0x1p-23 + u * std::fabs(want) * 1.01 + least
                 : size * (0x1p-15 + (c.k / 32.0 + 64) * 0x1p-24) + u * std::fabs(want) * 1.01 + least;
      const double got = from16(y.data[i * c.n + n], BF),
                   share = std::isnan(got) ? std::numeric_limits<double>::infinity() : std::fabs(got - want) / bound;
      if (share <= 1) worst = std::max(worst, share);
      else
        return fail("(" + std::to_string(i) + ", " + std::to_string(n) + ") is " + std::to_string(got) + ", not " +
                    std::to_string(want));
    }
}

// A tile of tokens: one group a block and several, zero points of all kinds, tails everywhere, shared items.
template <int B, int T, bool BF, class Cast>
void tile(const Type& t, bool all) {
  const bool integer = t.kind != 'f';
  one<B, T, BF, Cast>(t, {5 * T, 70, 264, 128, 0, true, BF, {0, 0, 3, 2}});
  one<B, T, BF, Cast>(t, {3, 40, 392, 32, integer ? 1 : 0, false, !BF, {0, 0, 2, 1}});
  if (integer)
    one<B, T, BF, Cast>(t, {7, 33, 200, 0, 1, true, BF, {0, 0, 0, 2}}),
        one<B, T, BF, Cast>(t, {T + 1, 64, 256, 64, 2, false, BF, {}});
  if (!all) return;
  one<B, T, BF, Cast>(t, {8 * T + 5, 296, 640, 128, 0, false, BF, {0, 4, 2, 5}});
  one<B, T, BF, Cast>(t, {8 * T, 232, 384, 128, integer ? 1 : 0, true, BF, {0, T == 16 ? 7 : 8, 0, 2}});
  one<B, T, BF, Cast>(t, {17, 96, 1152, 0, 0, false, BF, {0, 3, 3, 4}});
  if (integer)
    one<B, T, BF, Cast>(t, {9, 64, 256, 128, 0, false, BF, {0, 2, 0, 1}, 2.5}),
        one<B, T, BF, Cast>(t, {9, 64, 256, 64, 0, false, BF, {0, 1, 0, 3}, 0});
}

// Scaled weights of one form: whole items in groups of token tiles, items that blocks share evenly and not, tails
// everywhere. `most`: 0, every path of the work; 1, with zero points; 2, every path of the cut.
template <int B, int T, int Halves, bool BF, class Cast, int Pairs = 1>
void scaled(const Type& t, int most) {
  const bool integer = t.kind != 'f';
  const auto run = [&](const Case& c) { one<B, T, BF, Cast, Halves, Pairs>(t, c); };
  run({5 * T + 3, 70, 264, 128, 0, true, BF, {.stages = 2, .blocks = 2}});
  run({8 * T + 3, 40 * Halves + 130, 264, 32, 0, false, !BF, {.stages = 2, .blocks = 5 + Halves}});
  run({8 * T - 3, 40, 392, 64, 0, true, BF, {.blocks = T % 3 + 2, .cluster = true}});
  if (!integer || most < 1) return;
  run({8 * T, 120 * Pairs * Halves + 40, 1152, 128, 0, false, BF, {.blocks = 16, .cluster = true}});
  run({7, 33, 200, 0, 1, true, BF, {.blocks = 2}}), run({17, 64, 256, 64, 2, false, !BF, {}});
  if (most < 2) return;
  run({16 * T + 1, 260 * Halves, 384, 128, 0, false, BF, {.stages = 3, .blocks = 4}});
  run({75 * T, 148 * Halves, 256, 64, 0, true, BF, {.blocks = 7}});
  run({16 * T - 1, 116 * Halves, 1152, 0, 0, false, BF, {.blocks = 6}}),
      run({8 * T, 130 * Halves, 640, 0, 1, false, BF, {.blocks = 12}});
  run({63, 64, 256, 128, 0, false, BF, {.blocks = 3}, 2.5}),
      run({8 * T - 1, 64, 640, 128, 0, false, BF, {.blocks = 5}, 0});
}

template <int B>
void width() {
  for (char kind : {'u', 'i'}) {
    if (kind == 'i' && B == 1) continue;
    const Type t{kind, B, 0};
    tile<B, 2, false, IntCast<B, false>>(t, B == 3);
    tile<B, 2, true, IntCast<B, true>>(t, false);
    // Of four bits every form, and of the others either, so that each cast runs in one of them.
    scaled<B, 16, 2, false, IntCast<B, false>>(t, 1), scaled<B, 32, 1, true, IntCast<B, true>>(t, B == 4 ? 1 : 0);
    if constexpr (B == 4) {
      scaled<B, 16, 2, true, IntCast<B, true>>(t, kind == 'i' ? 2 : 0),
          scaled<B, 32, 1, false, IntCast<B, false>>(t, kind == 'u' ? 2 : 0);
      scaled<B, 16, 1, false, IntCast<B, false>>(t, 0), scaled<B, 20, 1, false, IntCast<B, false>>(t, 0),
          scaled<B, 24, 1, true, IntCast<B, true>>(t, 0);
      scaled<B, 4, 1, false, IntCast<B, false>>(t, 0), scaled<B, 8, 1, true, IntCast<B, true>>(t, 0),
          scaled<B, 12, 1, false, IntCast<B, false>>(t, 0);
      scaled<B, 4, 1, true, IntCast<B, true>, 2>(t, 1), scaled<B, 8, 1, false, IntCast<B, false>, 2>(t, 1),
          scaled<B, 12, 1, true, IntCast<B, true>, 2>(t, 1);
      tile<B, 2, false, IntCast<B, false>>(t, true), tile<B, 4, false, IntCast<B, false>>(t, true),
          tile<B, 8, false, IntCast<B, false>>(t, true);
      tile<B, 16, false, IntCast<B, false>>(t, true), tile<B, 8, true, IntCast<B, true>>(t, true);
    } else scaled<B, 8, 1, false, IntCast<B, false>, 2>(t, 0);
    if constexpr (B == 5 || B == 8)
      tile<B, 8, false, IntCast<B, false>>(t, B == 5), tile<B, 16, true, IntCast<B, true>>(t, false);
  }
  if constexpr (B >= 3)
    for (int e = 1; e <= B - 2; ++e) {
      const Type t{'f', B, e};
      // f16 holds 5 exponent bits where the type's highest means infinity, too.
      if (e < 5 || (B == 8 && e == 5)) tile<B, 2, false, FloatCast<B, false>>(t, false);
      tile<B, 2, true, FloatCast<B, true>>(t, false);
      if (e < 5 || (B == 8 && e == 5)) scaled<B, 32, 1, false, FloatCast<B, false>>(t, 0);
      scaled<B, 16, 2, true, FloatCast<B, true>>(t, 0);
      if constexpr (B == 6) tile<B, 8, false, FloatCast<B, false>>(t, e == 3);
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
  std::printf(
      "of the scaled products %lld were of whole items, %lld of items with owners, %lld of even shares, %lld of "
      "clusters\n",
      cuts[0], cuts[1], cuts[2], cuts[3]);
  std::printf("%lld products, %lld failures, at most %.2f of the bound\n", checks, failures, worst);
  return failures != 0;
}
