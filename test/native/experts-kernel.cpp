// The kernels of experts (native/cuda/gemm/kernels/experts.cuh, experts_sm90.cuh, experts_wide.cuh, experts_scaled.cuh)
// on the simulated device (simulator/): every width of integers and floats, f16 and bf16, all tiles, experts of 0 to
// 150 rows, tails of N and of groups of K, zero points, bias, items that blocks share, more blocks than steps. Against
// double precision, within the bound that test/gpu/native/kernels.cpp derives. y is full of NaN before, and so are
// shared memory and the rows of x that no expert has; of those rows y stays as it was, and counters are 0 after.
// Offsets that do not ascend set the fault, and nothing is multiplied.
#include <cstdio>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "../gpu/native/packed_format.h"
#include "boxes.h"
#include "cuda/gemm/families/packed_cut.h"
#include "cuda/gemm/families/scaled_plan.h"
#include "cuda/gemm/kernels/experts.cuh"
#include "cuda/gemm/kernels/experts_scaled.cuh"
#include "cuda/gemm/kernels/experts_sm90.cuh"
#include "cuda/gemm/kernels/experts_wide.cuh"
#include "packed_types.h"

using namespace lpq::cuda;

namespace {

std::mt19937_64 lot(11);
long long checks = 0, failures = 0;
double worst = 0;

struct Case {
  std::vector<int> counts;  // rows of each expert
  int n, k, group, zeros;
  bool bias, scale_bf16;
  int warps_n, warps_k, blocks;
  int before = 0, behind = 0;  // rows that no expert has
  int gate = 0;                // of kGates; n: columns of y
};

// An activation with its slope at most and what a kernel computes.
struct Gate {
  const char* name;
  ExpertGate by;
  double (*act)(double);
};
double share(double x) { return 1 / (1 + std::exp(-x)); }
constexpr float kNone = std::numeric_limits<float>::infinity(), kLog = -1.44269504f;
const Gate kGates[] = {
    {"none", {}, nullptr},
    {"silu", {kGateLinear, 0, {kLog}, kNone, 0}, [](double x) { return x * share(x); }},
    {"gelu",
     {kGateLinear,
      0,
      {1.59565627f * kLog, 7.29375816e-2f * kLog, -2.49723069e-4f * kLog, -6.11620538e-5f * kLog,
       2.23816679e-6f * kLog},
      kNone,
      0},
     [](double x) { return x * std::erfc(-x * std::sqrt(0.5)) / 2; }},
    {"gelu_tanh",
     {kGateLinear, 0, {1.5957691216f * kLog, 0.0713548163f * kLog}, kNone, 0},
     [](double x) {
       return x / 2 * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
     }},
    {"relu", {kGateLinear, 0, {1e30f * kLog}, kNone, 0}, [](double x) { return x > 0 ? x : 0; }},
    {"relu2", {kGateSquare, 0, {1e30f * kLog}, kNone, 0}, [](double x) { return x > 0 ? x * x : 0; }},
    {"quick_gelu", {kGateLinear, 0, {1.702f * kLog}, kNone, 0}, [](double x) { return x * share(1.702 * x); }},
    {"sigmoid", {kGateShare, 0, {kLog}, kNone, 0}, [](double x) { return share(x); }},
    {"clamped", {kGateLinear, 0, {1.702f * kLog}, 1.25f, 1}, [](double x) { return x * share(1.702f * x); }},
    {"limited", {kGateLinear, 0, {kLog}, 0.75f, 0}, [](double x) { return x * share(x); }},
};

double normal() { return std::normal_distribution<double>()(lot); }

// All experts' weights: as numbers, and packed one after the other.
struct Weights {
  std::vector<double> value, zero;  // [E][n][k], [E][n][groups]
  std::vector<uint16_t> scale, scales, zeros16, bias;
  std::vector<uint8_t> packed, zeros8;
};

template <class T>
void append(std::vector<T>& to, const std::vector<T>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

Weights draw(const Type& t, const Case& c, int n, int groups, bool bf16, double constant) {
  Weights w;
  const int codes = 1 << t.bits;
  double top = 0;
  for (int i = 0; i < codes; ++i)
    if (std::fabs(number(t, i)) > top) top = std::fabs(number(t, i));
  for (size_t e = 0; e < c.counts.size(); ++e) {
    std::vector<uint8_t> code(static_cast<size_t>(n * c.k)), zero8(static_cast<size_t>(n * groups));
    std::vector<uint16_t> scale(zero8.size()), zero16(zero8.size());
    std::vector<double> zero(zero8.size(), constant);
    for (uint8_t& each : code) {
      do each = static_cast<uint8_t>(lot() % static_cast<unsigned>(codes));
      while (std::isnan(number(t, each)));
      w.value.push_back(number(t, each));
    }
    for (size_t i = 0; i < scale.size(); ++i) {
      scale[i] = to16(std::max(1 / top, c.scale_bf16 ? 0 : 0x1p-12) * (0.5 + static_cast<double>(lot() % 1000) / 1000),
                      c.scale_bf16);
      if (c.zeros == 1)
        zero[i] = zero8[i] = i % 5 == 0 ? 255 : static_cast<uint8_t>(lot() % static_cast<unsigned>(codes));
      if (c.zeros == 2)
        zero[i] = from16(
            zero16[i] = to16((i % 7 == 0 ? -3.25 : codes) * static_cast<double>(lot() % 1000) / 1000, false), false);
    }
    append(w.zero, zero), append(w.scale, scale);
    append(w.packed, lpq::test::pack_weights(code, n, c.k, t.bits));
    append(w.scales, lpq::test::pack_scales(scale, n, groups));
    append(w.zeros8, lpq::test::pack_scales(zero8, n, groups));
    append(w.zeros16, lpq::test::pack_scales(zero16, n, groups));
    for (int i = 0; i < n; ++i) w.bias.push_back(to16(normal(), bf16));
  }
  return w;
}

// act(gate) up, and its bound out of those of both sums. Slopes are at most 1.13, that of relu2 twice the number.
// What the kernel adds: s = 1 / (1 + 2^z) is off by s (1 - s) |z| 2^-21, of the roundings of z, and 2^-21 s, of ex2,
// the sum and rcp, which with s (1 - s) |z| < 0.35 is below 2^-20 for x s once x is multiplied, 2^-19 for its square;
// gelu's polynomial 3.1e-6.
std::pair<double, double> gated_of(const Gate& by, double gate, double gate_off, std::pair<double, double> up) {
  const double limit = by.by.limit, x = std::min(gate, limit),
               line = std::min(std::max(up.first, -limit), limit) + by.by.lift, act = by.act(x);
  const bool square = by.by.kind == kGateSquare;
  const double slope = square ? 2 * (std::fabs(x) + gate_off) : 1.13,
               made = square                     ? x * x * 0x1p-19
                      : by.by.kind == kGateShare ? 0x1p-20
                                                 : std::fabs(x) * 0x1p-20 + (by.by.odd[4] != 0 ? 3.1e-6 : 0),
               act_off = slope * gate_off + made, line_off = up.second + std::fabs(line) * 0x1p-23;
  return {act * line, act_off * std::fabs(line) + (std::fabs(act) + act_off) * line_off};
}

enum class Kernel { portable, hopper, wide, scaled };

// XB: x is bf16; Cast casts to bf16 where WB.
template <int B, int T, bool XB, bool WB, class Cast, Kernel Which>
void one(const Type& t, const Case& c) {
  constexpr bool Wide = Which == Kernel::wide, Hopper = Which == Kernel::hopper, Scaled = Which == Kernel::scaled;
  const int experts = static_cast<int>(c.counts.size()), n_rows = c.gate ? (c.n + 31) / 32 * 64 : c.n,
            n_blocks = (n_rows + 31) / 32, k_blocks = (c.k + 127) / 128, pitch = (c.k + 63) / 64 * 64,
            length = c.group ? c.group : c.k, groups = (c.k + length - 1) / length;
  const bool integer = t.kind != 'f';
  const double constant = t.kind == 'u' && !c.zeros ? (1 << B) / 2 : 0;
  std::vector<int> offsets{c.before};
  for (int count : c.counts) offsets.push_back(offsets.back() + count);
  const int m = offsets.back() + c.behind;
  const Gate& gate = kGates[c.gate];
  const Weights w = draw(t, c, n_rows, groups, XB, constant);
  const uint16_t poison = XB ? 0x7fc1 : 0x7e01;
  std::vector<uint16_t> xs(static_cast<size_t>(m * pitch), 0);
  for (int i = 0; i < m; ++i)
    for (int k = 0; k < c.k; ++k)
      xs[static_cast<size_t>(i * pitch + k)] = i < c.before || i >= offsets.back() ? poison : to16(normal(), XB);
  const Aligned<uint16_t> x(xs), y(std::vector<uint16_t>(static_cast<size_t>(m * c.n), poison)), scales(w.scales),
      zeros16(w.zeros16);
  const Aligned<uint8_t> packed(w.packed), zeros8(w.zeros8);

  GemmPackedArgs g{};
  g.weights = packed.data, g.x = x.data, g.y = y.data, g.scales = scales.data;
  g.zeros = c.zeros == 1 ? zeros8.data : c.zeros == 2 ? reinterpret_cast<const unsigned char*>(zeros16.data) : nullptr;
  g.bias = c.bias ? w.bias.data() : nullptr;
  g.m = m, g.n = n_rows, g.k = pitch, g.n_blocks = n_blocks, g.k_blocks = k_blocks, g.groups = groups;
  g.groups_per_block = c.group ? 128 / c.group : 1, g.channel = c.group == 0, g.scale_bf16 = c.scale_bf16,
  g.zero_kind = c.zeros;
  g.zero = static_cast<float>(constant + (t.kind == 'i' ? (1 << B) / 2 : 0));
  g.is_signed = t.kind != 'u', g.exponent = t.exponent;
  g.warps_n = c.warps_n, g.warps_k = c.warps_k, g.stages = 3;
  WidePlan wide{.tiles = T, .stages = 3, .warps = wide_warps(T, c.warps_n), .blocks = c.blocks};
  wide.args.width = c.warps_n, wide.args.token_tiles = 1, wide.args.vectors = c.n % 8 == 0;
  wide.args.zero_mode = wide_zero_mode(g, integer, B, XB);
  if (Wide && wide.args.zero_mode == kZeroSums) return;
  ScaledPlan scaled{.form = {T, 2, 1, 0, 0, 0}, .blocks = c.blocks};
  const bool whole = scaled_constant(g, integer, B, XB);
  g.strips = (n_blocks + c.warps_n - 1) / c.warps_n, g.steps = (k_blocks + c.warps_k - 1) / c.warps_k;
  std::vector<float> partial(static_cast<size_t>(2 * c.blocks * c.warps_n * T * 256), NAN);
  std::vector<unsigned> counters(static_cast<size_t>(2 * c.blocks), 0);
  uint32_t fault = 0;
  g.partial = partial.data(), g.counters = counters.data();
  ExpertArgs a{offsets.data(), experts, &fault, 2, gate.by};
  a.gate.columns = c.n;

  const std::string name = t.name() + (XB ? " bf16 " : " f16 ") + std::to_string(m) + "x" + std::to_string(c.n) + "x" +
                           std::to_string(c.k) + " g" + std::to_string(c.group) + " z" + std::to_string(c.zeros) +
                           " tile " + std::to_string(8 * T) +
                           (Scaled   ? " scaled"
                            : Wide   ? " wide"
                            : Hopper ? " wgmma"
                                     : " mma") +
                           " blocks " + std::to_string(c.blocks) + " gate " + gate.name;
  const auto fail = [&](const std::string& what) {
    if (++failures <= 20) std::printf("FAIL %s: %s\n", name.c_str(), what.c_str());
  };
  const PackedTiles cut{Hopper, T, c.warps_n, c.warps_k, g.stages, c.blocks, 0};
  int64_t bytes = Wide ? 1024 + 3 * wide_stage_bytes(g, T, c.warps_n, B) + wide.warps * 512
                       : shared_bytes(cut, B, g.groups_per_block * (64 + 32 * c.zeros));
  if (Scaled) {
    const int64_t stage = scaled_stage_bytes(g, 8, B);
    g.stages = 3;
    scaled.args.slabs = 4, scaled.args.rows = 8 * T, scaled.args.token_tiles = 1;
    scaled.args.staging_at = static_cast<int>(1024 + 4 * 1024 * T + 3 * stage);
    scaled.args.received_at = scaled.args.staging_at + 8 * kScaledStaging;
    scaled.args.lift = t.kind == 'i' ? (1 << B) / 2 : 0, scaled.args.zero = g.zero - scaled.args.lift;
    scaled.args.vectors = c.n % 8 == 0;
    bytes = scaled.args.received_at;
  }
  const int shared = static_cast<int>(bytes) + expert_plan_bytes(experts);
  if (shared > simt::kShared) return fail("does not fit shared memory");
  const auto run = [&] {
    simt::begin(lot());
    const int threads = 32 * (Scaled ? 12 : Wide ? wide.warps + 4 : c.warps_n * c.warps_k + (Hopper ? 4 : 0));
    gridDim.x = static_cast<unsigned>(c.blocks);
    GemmPackedArgs all = g;
    all.n_blocks *= experts;
    const PackedMaps maps = Scaled   ? scaled_maps(all, B, scaled)
                            : Wide   ? wide_maps(all, B, wide)
                            : Hopper ? packed_maps(all, B, cut)
                                     : PackedMaps{};
    simt::run(c.blocks, threads, c.blocks, shared, lot(), [&] {
      blockDim.x = static_cast<unsigned>(threads);
      if constexpr (Scaled) {
        if (whole) gemm_experts_scaled<B, T, 2, false, XB, Cast::kSums>(g, scaled.args, a, maps);
        else if constexpr (Cast::kSums) gemm_experts_scaled<B, T, 2, true, XB, true>(g, scaled.args, a, maps);
      } else if constexpr (Wide) {
        if (g.groups_per_block == 1) gemm_experts_wide<B, T, true, XB, Cast>(g, wide.args, a, maps);
        else gemm_experts_wide<B, T, false, XB, Cast>(g, wide.args, a, maps);
      } else if constexpr (Hopper) gemm_experts_hopper<B, T, XB, Cast>(g, a, maps);
      else gemm_experts<B, T, XB, WB, Cast>(g, a);
    });
    if (*simt::unfinished()) throw std::runtime_error(simt::unfinished());
  };
  ++checks;
  try {
    // Bad offsets first: what they leave behind must not disturb what follows.
    if (checks % 16 == 1) {
      std::swap(offsets[static_cast<size_t>(experts)], offsets[static_cast<size_t>(experts / 2)]);
      run();
      if (fault == 0) return fail("offsets that do not ascend set no fault");
      for (int i = 0; i < m * c.n; ++i)
        if (y.data[i] != poison) return fail("something was multiplied by offsets that do not ascend");
      std::swap(offsets[static_cast<size_t>(experts)], offsets[static_cast<size_t>(experts / 2)]), fault = 0;
    }
    run();
  } catch (const std::exception& error) {
    return fail(error.what());
  }
  if (fault) return fail("the fault is set");
  for (unsigned count : counters)
    if (count) return fail("a counter is left at " + std::to_string(count));
  const double lift = t.kind == 'i' ? (1 << B) / 2 : 0,
               offset = !integer || !WB ? 0
                        : B == 8        ? -128
                                        : 128,
               u = XB ? 0x1p-8 : 0x1p-11, least = XB ? 1e-40 : 0x1p-25;
  int e = 0;
  for (int i = 0; i < m; ++i) {
    while (e < experts && i >= offsets[static_cast<size_t>(e + 1)]) ++e;
    for (int n = 0; n < c.n; ++n) {
      const uint16_t got_bits = y.data[i * c.n + n];
      const auto place = "(" + std::to_string(i) + ", " + std::to_string(n) + ") ";
      if (i < c.before || e == experts) {
        if (got_bits != poison) return fail(place + "is of no expert, and was written");
        continue;
      }
      // A row of weights times x, and by how much sums in fp32 may be off.
      const auto sum_of = [&](int row_of) -> std::pair<double, double> {
        double want = 0, size = 0, rounded = 0;  // rounded: what rounding of weights may add
        for (int k = 0; k < c.k; ++k) {
          const size_t row = static_cast<size_t>(e * n_rows + row_of),
                       at = row * static_cast<size_t>(groups) + static_cast<size_t>(k / length);
          const double s = from16(w.scale[at], c.scale_bf16), v = from16(x.data[i * pitch + k], XB),
                       q = w.value[row * static_cast<size_t>(c.k) + static_cast<size_t>(k)];
          want += v * (q - w.zero[at]) * s;
          size += Scaled ? std::fabs(v * (q - w.zero[at]) * s)
                         : std::fabs(v) * (std::fabs(q + lift + offset) + std::fabs(w.zero[at] + lift + offset)) * s;
          rounded += std::fabs(v) * ((whole ? 1
                                      : XB  ? 3
                                            : 2) *
                                         u * 1.02 * std::fabs(q - w.zero[at]) * s +
                                     2 * u * u * (std::fabs(q) + std::fabs(w.zero[at])) * s +
                                     (XB ? 0 : 0x1p-25 * (1 + std::fabs(q - w.zero[at]))));
        }
        if (c.bias) {
          const double b = from16(w.bias[static_cast<size_t>(e * n_rows + row_of)], XB);
          want += b, size += std::fabs(b);
        }
        const double sums =
            Scaled ? rounded + size * (c.k / 16.0 * 17 + 64) * 0x1p-23 : size * (0x1p-15 + (c.k / 32.0 + 64) * 0x1p-24);
        return {want, sums};
      };
      auto [want, sums] = sum_of(gate.act ? n / 8 * 16 + n % 8 : n);
      if (gate.act) std::tie(want, sums) = gated_of(gate, want, sums, sum_of(n / 8 * 16 + n % 8 + 8));
      const double bound = sums + u * std::fabs(want) * 1.01 + least, got = from16(got_bits, XB),
                   share = std::isnan(got) ? std::numeric_limits<double>::infinity() : std::fabs(got - want) / bound;
      // Beyond the largest f16 the answer is an infinity.
      if (!XB && std::fabs(want) > 65504 - bound && std::isinf(got) && (got > 0) == (want > 0)) continue;
      if (share <= 1) worst = std::max(worst, share);
      else return fail(place + "is " + std::to_string(got) + ", not " + std::to_string(want));
    }
  }
}

const std::vector<int> kAll{0, 1, 15, 16, 17, 100, 0}, kFew{2, 0, 0, 17, 1};

// Groups of every size, zero points of all kinds, tails everywhere, items that are whole and that blocks share.
// `most`: 0, what differs between types; 1, every count of rows too; 2, every path.
template <int B, int T, bool XB, bool WB, class Cast, Kernel Which>
void kernel(const Type& t, int most) {
  const bool integer = t.kind != 'f';
  const auto run = [&](const Case& c) { one<B, T, XB, WB, Cast, Which>(t, c); };
  run({kFew, 70, 264, 32, integer ? 1 : 0, true, WB, 4, B < 7 ? 2 : 1, 3, 1, 2});
  run({kFew, 41, 264, 32, integer ? 1 : 0, true, WB, 4, B < 7 ? 2 : 1, 5, 1, 2, 1 + B % 9});
  if (most < 1) return;
  run({kAll, 70, 264, 128, 0, true, !XB, 4, 1, 5});
  if (integer) run({{1, 30}, 33, 200, 0, 2, false, XB, 4, 1, 2, 3});
  if (most < 2) return;
  for (int gate = 1; gate < static_cast<int>(std::size(kGates)); ++gate)
    run({gate == 1 ? kAll : kFew, gate % 2 ? 70 : 96, 392, 64, integer && gate % 3 == 0 ? 1 : 0, gate % 2 == 0, XB, 4,
         1, 3 + gate, 2, 1, gate});
  run({kAll, 170, 392, 64, integer ? 1 : 0, false, XB, 4, 2, 7, 5, 1});
  run({{0, 0, 1}, 40, 128, 128, 0, true, XB, 4, 1, 9});                 // more blocks than steps
  run({{0, 0, 0}, 40, 128, 128, 0, true, XB, 4, 1, 4, 2, 3});           // nothing to do
  run({std::vector<int>(70, 1), 40, 392, 128, 0, false, XB, 4, 1, 6});  // lanes with several experts of the plan
  run({{65, 8 * T + 1}, 290, 640, 0, 0, false, XB, 8, 1, 4});
}

// The type on all kernels, in tiles of different sizes.
template <int B, bool XB, class Cast>
void both(const Type& t, int most) {
  kernel<B, 2, XB, XB, Cast, Kernel::hopper>(t, most), kernel<B, 8, XB, XB, Cast, Kernel::portable>(t, most);
  if constexpr (B % 4 == 0 || B == 2 || B == 3)
    kernel<B, XB ? 8 : 4, XB, XB, Cast, Kernel::wide>(t, most), kernel<B, 2, XB, XB, Cast, Kernel::wide>(t, 0);
  if constexpr (B % 4 == 0) {
    kernel<B, 16, XB, XB, Cast, Kernel::scaled>(t, std::min(most, 1));
    if (most == 2)
      for (int blocks : {4, 8}) {
        // Items that several blocks share, two or three each, or in equal runs; and some before them that are whole.
        one<B, 16, XB, XB, Cast, Kernel::scaled>(t, {{150, 0, 20}, 40, 1024, 128, 0, true, XB, 8, 1, 7 + blocks});
        one<B, 16, XB, XB, Cast, Kernel::scaled>(t, {{150, 20}, 296, 4096, 0, 0, false, XB, 8, 1, blocks});
        one<B, 16, XB, XB, Cast, Kernel::scaled>(
            t, {{150, 0, 20}, 40, 1024, 128, 0, true, XB, 8, 1, 7 + blocks, 0, 0, blocks == 4 ? 1 : 8});
        one<B, 16, XB, XB, Cast, Kernel::scaled>(
            t, {{150, 20}, 148, 4096, 0, 0, false, XB, 8, 1, blocks, 0, 0, blocks == 4 ? 2 : 9});
      }
  }
  if (most < 1) return;
  kernel<B, 8, XB, XB, Cast, Kernel::hopper>(t, most), kernel<B, 2, XB, XB, Cast, Kernel::portable>(t, most);
  if constexpr (B % 4 == 0 || B == 2 || B == 3) kernel<B, XB ? 4 : 8, XB, XB, Cast, Kernel::wide>(t, most);
}

template <int B>
void width() {
  for (char kind : {'u', 'i'}) {
    if (kind == 'i' && B == 1) continue;
    const Type t{kind, B, 0};
    both<B, false, IntCast<B, false>>(t, B != 4 ? 0 : kind == 'u' ? 2 : 1);
    both<B, true, IntCast<B, true>>(t, B == 4 && kind == 'i' ? 1 : 0);
  }
  if constexpr (B >= 3)
    for (int e = 1; e <= B - 2; ++e) {
      const Type t{'f', B, e};
      both<B, true, FloatCast<B, true>>(t, B == 4 ? 1 : 0);
      // f16 holds 5 exponent bits where the type's highest means infinity, too; else both become bf16.
      if (e < 5 || (B == 8 && e == 5)) both<B, false, FloatCast<B, false>>(t, 0);
      else
        kernel<B, 2, false, true, FloatCast<B, true>, Kernel::portable>(t, 1),
            kernel<B, 8, false, true, FloatCast<B, true>, Kernel::portable>(t, 0);
    }
  std::printf("%d bits\n", B);
  std::fflush(stdout);
}

// Of LPQ_BITS_FROM to LPQ_BITS_TO bits.
template <int B>
void widths() {
  if constexpr (B <= LPQ_BITS_TO) {
    width<B>();
    widths<B + 1>();
  }
}

}  // namespace

int main() {
  widths<LPQ_BITS_FROM>();
  std::printf("%lld products, %lld failures, at most %.2f of the bound\n", checks, failures, worst);
  return failures != 0;
}
