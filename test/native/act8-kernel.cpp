// The kernel of 8-bit activations itself (native/cuda/gemm/kernels/act8.cuh), run on the host by threads that the host
// plays (simulator/): every kind and form, tails, items that blocks share through the workspace and in clusters, all
// outputs. Codes are laid out by their closed forms; y is full of NaN before, counters are 0 after.
//
// Sums of all of K, and those of 128 of k that are integers where no item is shared, compare exactly, scaled and
// rounded as ops/gemm_act.h says. Else: an fp32 addition a block of 128 and a few of shared items, each within 2^-24 of
// the magnitudes that went in; the host's e4m3 products are rounded to fp32 four times a block. y is rounded once.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "asynchronous.h"
#include "cuda/gemm/families/act8_plan.h"
#include "cuda/gemm/kernels/act8.cuh"
#include "device-data.h"
#include "lpq/half.h"

using namespace lpq;
using namespace lpq::cuda;

namespace lpq::cuda {
// For scaled_maps, which no product here has.
TensorMap describe_boxes(const void*, int, const uint64_t (&)[3], const uint64_t (&)[2], const uint32_t (&)[3], bool) {
  return {};
}
}  // namespace lpq::cuda

namespace {

std::mt19937_64 engine(31);
int between(int low, int high) { return static_cast<int>(engine() % static_cast<uint64_t>(high - low + 1)) + low; }
long long products = 0, failures = 0;
double worst = 0;

struct Case {
  int m, n, k, processors;
  std::string reduce;
  int blocks, store;
  bool bias;
};

template <class Source, int T, int G>
void run(const char* kind, const Case& c) {
  const auto z = [](long long v) { return static_cast<size_t>(v); };
  constexpr bool kFloat = std::is_same_v<typename Source::Part, float>, kScaled = Source::kFactorBytes == 4;
  const int k_blocks = (c.k + 127) / 128, units = (c.n + 15) / 16, pitch = units * 16;
  Aligned<uint8_t> x(z(c.m) * z(c.k)), w(Source::kNibbles ? z(units) * z(k_blocks) * 1024 : z(c.n) * z(c.k)),
      factors(z(k_blocks) * z(pitch), 255);
  Aligned<float> scales(z(k_blocks) * z(pitch), NAN);
  std::vector<double> xv(z(c.m) * z(c.k)), wv(z(c.n) * z(c.k));
  const auto byte = [&](double& value, int least) {
    uint8_t code = static_cast<uint8_t>(between(kFloat ? 0 : least, kFloat ? 255 : 127));
    if (kFloat && (code & 127) == 127) code ^= 1;  // no NaN
    value = kFloat ? simt::e4m3(code) : static_cast<int8_t>(code);
    return code;
  };
  for (int i = 0; i < c.m * c.k; ++i) x.data[i] = byte(xv[z(i)], -127);
  for (int b = 0; b < k_blocks; ++b)
    for (int r = 0; r < c.n; ++r) {
      factors.data[b * pitch + r] = static_cast<uint8_t>(between(-15, 16));
      scales.data[b * pitch + r] = static_cast<float>(between(1, 999)) / 65536;
    }
  for (int r = 0; r < c.n; ++r)
    for (int i = 0; i < c.k; ++i) {
      double& value = wv[z(r) * z(c.k) + z(i)];
      if (!Source::kNibbles) {
        w.data[z(r) * z(c.k) + z(i)] = byte(value, -128);
        continue;
      }
      const int code = between(-8, 7);
      value = code * (Source::kFactorBytes == 1 ? static_cast<int8_t>(factors.data[i / 128 * pitch + r]) : 1);
      const int chunk = i % 128 / 32,
                word = 128 * (chunk / 2) + 4 * (4 * (r % 8) + i % 16 / 4) + 2 * (chunk % 2) + r % 16 / 8;
      w.data[(z(r / 16) * z(k_blocks) + z(i / 128)) * 1024 + z(4 * word + i % 4)] |=
          static_cast<uint8_t>((code & 15) << 4 * (i % 32 / 16));
    }
  const int x_pitch = (c.m + 3) / 4 * 4;
  Aligned<float> block_scales(z(k_blocks) * z(x_pitch), NAN);
  for (int b = 0; b < k_blocks; ++b)
    for (int t = 0; t < c.m; ++t) block_scales.data[b * x_pitch + t] = static_cast<float>(between(1, 999)) / 4096;
  std::vector<float> sx(z(c.m)), sw(z(c.n)), bias(z(c.n));
  for (float& v : sx) v = static_cast<float>(between(1, 999)) / 4096;
  for (float& v : sw) v = static_cast<float>(between(1, 999)) / 65536;
  for (float& v : bias) v = static_cast<float>(between(-99, 99)) / 16;

  ops::GemmSettings wish;
  wish.blocks = c.blocks, wish.reduce = c.reduce;
  const Act8Kind& what = *std::find_if(std::begin(kAct8Kinds), std::end(kAct8Kinds),
                                       [&](const Act8Kind& each) { return std::string(each.name) == kind; });
  auto plan = choose_act8(
      c.processors, 232448, what, c.m, c.n, k_blocks, wish,
      [](const ScaledForm& form) { return form.tiles == T && form.pairs == G; },
      [&](const ScaledForm&, int blocks) { return c.processors / blocks; });
  const std::string name = std::string(kind) + " " + std::to_string(T) + "x" + std::to_string(G) + " " +
                           std::to_string(c.m) + "x" + std::to_string(c.n) + "x" + std::to_string(c.k) + " " +
                           c.reduce + " " + std::to_string(c.blocks) + " store " + std::to_string(c.store);
  const auto fail = [&](const std::string& why) {
    if (++failures <= 20) std::printf("FAIL %s: %s\n", name.c_str(), why.c_str());
  };
  ++products;
  if (!plan) return fail("has no plan");
  const size_t outputs = z(c.m) * z(c.n), element = c.store == kW4axStoreF32 ? 4 : 2;
  Aligned<uint8_t> y(outputs * element, 0xff);
  std::vector<float> partial(z(plan->args.shared_blocks) * z(T * plan->form.width()) * 256, NAN);
  std::vector<unsigned> counters(z(2 * plan->args.items), 0);
  Act8Args a{};
  a.y = y.data, a.x_scales = sx.data(), a.w_scales = sw.data(), a.bias = c.bias ? bias.data() : nullptr;
  a.partial = partial.data(), a.counters = counters.data();
  a.m = c.m, a.n = c.n, a.k_blocks = k_blocks, a.stages = plan->stages, a.store = c.store;
  plan->args.vectors = c.n % 8 == 0, plan->args.overlap = c.m % 2;
  const auto u = [](int v) { return static_cast<uint64_t>(v); };
  const uint32_t rows = static_cast<uint32_t>(32 * plan->form.width());
  Act8Maps maps{};
  maps.x = boxes(x.data, 1, u(c.k), u(c.m), 1, u(c.k), 0, 128, static_cast<uint32_t>(plan->args.rows), 1, true);
  if (Source::kNibbles)
    maps.weights = boxes(w.data, 8, 128, u(k_blocks), u(units), 1024, u(k_blocks) * 1024, 128, 1, rows / 16, false);
  else maps.weights = boxes(w.data, 1, u(c.k), u(c.n), 1, u(c.k), 0, 128, rows, 1, true);
  if (kScaled)
    maps.factors = boxes(scales.data, 8, u(pitch / 2), u(k_blocks), 1, u(4 * pitch), 0, rows / 2, 1, 1, false);
  else maps.factors = boxes(factors.data, 1, u(pitch), u(k_blocks), 1, u(pitch), 0, rows, 1, 1, false);
  if (Source::kTokenScales)
    maps.x_scales = boxes(block_scales.data, 4, u(x_pitch), u(k_blocks), 1, u(4 * x_pitch), 0,
                          static_cast<uint32_t>(plan->args.rows), 1, 1, false);
  simt::begin(engine());
  try {
    gridDim.x = static_cast<unsigned>(plan->blocks);
    simt::cluster_blocks = static_cast<uint32_t>(std::max(1, plan->args.cluster));
    simt::run(plan->blocks, scaled_threads(G), plan->blocks, static_cast<int>(plan->shared), engine(), [&] {
      blockDim.x = static_cast<unsigned>(scaled_threads(G));
      gemm_act8<Source, T, G>(a, plan->args, maps);
    });
  } catch (const std::exception& error) {
    return fail(error.what());
  }
  if (*simt::unfinished()) return fail(simt::unfinished());
  for (unsigned counter : counters)
    if (counter != 0) return fail("a counter was left");
  for (int t = 0; t < c.m; ++t)
    for (int r = 0; r < c.n; ++r) {
      float sum = 0;
      double size = 0, whole = 0;
      for (int b = 0; b < k_blocks; ++b) {
        const float token = Source::kTokenScales ? block_scales.data[b * x_pitch + t] : 1;
        const double scale = kScaled ? token * scales.data[b * pitch + r] : token;
        double part = 0;
        for (int i = b * 128; i < std::min(c.k, b * 128 + 128); ++i) {
          const double p = xv[z(t) * z(c.k) + z(i)] * wv[z(r) * z(c.k) + z(i)];
          part += p, size += std::fabs(p * scale);
        }
        sum = std::fma(static_cast<float>(part), static_cast<float>(scale), sum), whole += part;
      }
      if (!Source::kPromote) sum = static_cast<float>(whole);  // integers below 2^53
      // g4x has the scales of tokens in the sums, and not those of rows.
      const float factor = (Source::kTokenScales ? 1 : sx[z(t)]) * (kScaled ? 1 : sw[z(r)]),
                  exact = sum * factor + (c.bias ? bias[z(r)] : 0);
      const float want = c.store == kW4axStoreF32    ? exact
                         : c.store == kW4axStoreBf16 ? bf16_to_f32(f32_to_bf16(exact))
                                                     : f16_to_f32(f32_to_f16(exact));
      const double unit = c.store == kW4axStoreF32 ? 0x1p-24 : c.store == kW4axStoreBf16 ? 0x1p-8 : 0x1p-11;
      const double bound =
          !Source::kPromote || (!kFloat && plan->args.shared_items == 0)
              ? 0
              : (k_blocks + 16) * 0x1p-24 * (size * factor + std::fabs(exact)) + 2 * unit * std::fabs(exact) + 0x1p-24;
      float got;
      uint16_t half;
      std::memcpy(&half, y.data + (z(t) * z(c.n) + z(r)) * element, 2);
      if (element == 4) std::memcpy(&got, y.data + (z(t) * z(c.n) + z(r)) * 4, 4);
      else got = c.store == kW4axStoreBf16 ? bf16_to_f32(half) : f16_to_f32(half);
      const double off = std::fabs(static_cast<double>(got) - want);
      if (!(off <= bound))
        return fail("y[" + std::to_string(t) + "][" + std::to_string(r) + "] is " + std::to_string(got) + ", not " +
                    std::to_string(want));
      if (bound > 0) worst = std::max(worst, off / bound);
    }
}

template <class Source, int T, int G>
void form(const char* kind) {
  const int stores[] = {kW4axStoreF32, kW4axStoreF16, kW4axStoreBf16};
  static int at = 0;
  run<Source, T, G>(kind, {5, 40, 272, 2, "", 0, stores[at++ % 3], true});
  run<Source, T, G>(kind, {8 * T - 3, 128 * G + 24, 384, 8, "cluster", 2 * 2, stores[at++ % 3], false});
#ifdef LPQ_ALL_FORMS
  run<Source, T, G>(kind, {8 * T + 5, 128 * G - 8, 400, 8, "global", 6, stores[at++ % 3], true});
  run<Source, T, G>(kind, {8 * T + 1, 300, 512, 3, "", 3, stores[at++ % 3], false});
#endif
}
template <class Source>
void forms(const char* kind) {
  form<Source, 2, 1>(kind);
  form<Source, 8, 2>(kind);
  if constexpr (std::is_same_v<Source, Int8GroupBlocks>) form<Source, 24, 1>(kind);
#ifdef LPQ_ALL_FORMS
  form<Source, 2, 2>(kind);
  form<Source, 4, 2>(kind);
  if constexpr (!Source::kPromote) form<Source, 12, 2>(kind), form<Source, 16, 2>(kind);
  form<Source, 4, 1>(kind);
  form<Source, 8, 1>(kind);
  form<Source, 12, 1>(kind);
  form<Source, 16, 1>(kind);
  if constexpr (std::is_same_v<Source, Int8GroupBlocks>) form<Source, 32, 1>(kind);
  if constexpr (!Source::kPromote) form<Source, 20, 1>(kind), form<Source, 24, 1>(kind), form<Source, 32, 1>(kind);
#endif
}

}  // namespace

int main() {
  forms<Int8Bytes>("i8");
  forms<Int8Rows>("r4");
  forms<Int8Groups>("g4");
  forms<Fp8Bytes>("f8");
  forms<Int8Scaled>("w4");
  forms<Int8Blocks>("w4x");
  forms<Int8GroupBlocks>("g4x");
  forms<Fp8Scaled>("w4f8");
  std::printf("%lld products, %lld failures, at most %.2f of the bound\n", products, failures, worst);
  return failures ? 1 : 0;
}
