// The kernel of W4Ax itself (native/cuda/gemm/kernels/w4ax.cuh), run on the host by threads that the host plays
// (simulator/): every tile, tails, pairs of blocks, items that blocks share, all outputs. Codes
// are laid out by their closed forms; integers against 64-bit sums bit by bit where no item is shared.
//
// Else: an fp32 addition a block of 128 and a few of shared items, each within 2^-24 of the magnitudes that went in;
// the host's e4m3 products are rounded to fp32 four times a block. y is rounded once.
#include <cstdio>
#include <random>
#include <string>
#include <vector>

//
#include "asynchronous.h"
#include "cuda/gemm/families/w4ax_plan.h"
#include "cuda/gemm/kernels/w4ax.cuh"
#include "device-data.h"

using namespace lpq;
using namespace lpq::cuda;

namespace {

std::mt19937_64 engine(29);
int between(int low, int high) { return static_cast<int>(engine() % static_cast<uint64_t>(high - low + 1)) + low; }
long long products = 0, failures = 0;
double worst = 0;

struct Case {
  int m, n, k_blocks;
  int processors, cluster, shared, stages, store;
  bool bias;
};

template <int T>
void run(const char* kind, const Case& c) {
  const auto z = [](long long v) { return static_cast<size_t>(v); };
  const int k = 128 * c.k_blocks, x_pitch = (c.m + 3) / 4 * 4, w_pitch = (c.n + 3) / 4 * 4;
  // Values and bytes of activations and weights.
  std::vector<double> xv(z(c.m) * z(k)), wv(z(c.n) * z(k));
  std::vector<int> blocks(z(c.k_blocks), 0);
  int eights = 0, fours = 0;
  for (int b = 0; b < c.k_blocks; ++b) blocks[z(b)] = between(0, 1) ? ~fours++ : eights++;
  Aligned<uint8_t> x(z(c.m) * z(128 * std::max(1, eights))), x4(z(c.m) * z(64 * std::max(1, fours))),
      w(z((c.n + 15) / 16) * z(c.k_blocks) * 1024);
  const auto byte = [&](double& value) {
    const int code = between(-127, 127);
    value = code;
    return static_cast<uint8_t>(code);
  };
  for (int t = 0; t < c.m; ++t)
    for (int i = 0; i < k; ++i) {
      const int place = blocks[z(i / 128)];
      double& value = xv[z(t) * z(k) + z(i)];
      if (place >= 0) {
        x.data[(z(t) * z(eights) + z(place)) * 128 + z(i % 128)] = byte(value);
      } else {
        value = between(-7, 7);
        x4.data[(z(t) * z(fours) + z(~place)) * 64 + z(i % 128 / 32 * 16 + i % 16)] |=
            static_cast<uint8_t>((static_cast<int>(value) & 15) << 4 * (i % 32 / 16));
      }
    }
  for (int r = 0; r < c.n; ++r)
    for (int i = 0; i < k; ++i) {
      double& value = wv[z(r) * z(k) + z(i)];
      value = between(-8, 7);
      const int chunk = i % 128 / 32,
                word = 128 * (chunk / 2) + 4 * (4 * (r % 8) + i % 16 / 4) + 2 * (chunk % 2) + r % 16 / 8;
      w.data[(z(r / 16) * z(c.k_blocks) + z(i / 128)) * 1024 + z(4 * word + i % 4)] |=
          static_cast<uint8_t>((static_cast<int>(value) & 15) << 4 * (i % 32 / 16));
    }
  Aligned<float> sx(z(c.k_blocks) * z(x_pitch), NAN), sw(z(c.k_blocks) * z(w_pitch), NAN);
  for (int b = 0; b < c.k_blocks; ++b)
    for (int t = 0; t < c.m; ++t) sx.data[z(b) * z(x_pitch) + z(t)] = static_cast<float>(between(1, 999)) / 4096;
  for (int b = 0; b < c.k_blocks; ++b)
    for (int r = 0; r < c.n; ++r) sw.data[z(b) * z(w_pitch) + z(r)] = static_cast<float>(between(1, 999)) / 65536;
  std::vector<float> bias(z(c.n));
  for (float& v : bias) v = static_cast<float>(between(-99, 99)) / 16;

  lpq::ops::GemmSettings wish;
  wish.tokens = 8 * T, wish.cluster = c.cluster, wish.stages = c.stages, wish.shared = c.shared;
  const auto plan = plan_w4ax(c.processors, 232448, c.m, c.n, k, wish);
  const std::string name = std::string(kind) + " T" + std::to_string(T) + " " + std::to_string(c.m) + "x" +
                           std::to_string(c.n) + "x" + std::to_string(k) + " cluster " + std::to_string(c.cluster) +
                           " shared " + std::to_string(c.shared) + " store " + std::to_string(c.store);
  const auto fail = [&](const std::string& what) {
    if (++failures <= 20) std::printf("FAIL %s: %s\n", name.c_str(), what.c_str());
  };
  ++products;
  if (!plan) return fail("has no plan");
  const size_t outputs = z(c.m) * z(c.n), element = c.store == kW4axStoreF32 ? 4 : 2;
  Aligned<uint8_t> y(outputs * element, 0xff);
  std::vector<int4> partial(z(2 * plan->blocks) * z(8 * T) * 64, int4{-1, -1, -1, -1});
  std::vector<unsigned> counters(z(2 * plan->items * plan->cluster), 0);
  W4axArgs a{};
  a.y = y.data, a.bias = c.bias ? bias.data() : nullptr, a.blocks = blocks.data();
  a.partial = reinterpret_cast<float*>(partial.data()), a.counters = counters.data();
  a.m = c.m, a.n = c.n, a.k_blocks = c.k_blocks, a.token_tiles = plan->token_tiles, a.items = plan->items,
  a.shared = plan->shared, a.stages = plan->stages, a.cluster = plan->cluster;
  a.store = c.store, a.vectors = c.n % 8 == 0;
  const auto u = [](int v) { return static_cast<uint64_t>(v); };
  W4axMaps maps{};
  maps.x =
      boxes(x.data, 1, u(128 * std::max(1, eights)), u(c.m), 1, u(128 * std::max(1, eights)), 0, 128, 8 * T, 1, true);
  maps.x4 =
      boxes(x4.data, 1, u(64 * std::max(1, fours)), u(c.m), 1, u(64 * std::max(1, fours)), 0, 64, 8 * T, 1, false);
  maps.weights = boxes(w.data, 8, 128, u(c.k_blocks), u((c.n + 15) / 16), 1024, u(c.k_blocks) * 1024, 128, 1, 8, false);
  maps.w_scales = boxes(sw.data, 8, u(w_pitch / 2), u(c.k_blocks), 1, u(4 * w_pitch), 0, kW4axRows / 2, 1, 1, false);
  maps.x_scales = boxes(sx.data, 8, u(x_pitch / 2), u(c.k_blocks), 1, u(4 * x_pitch), 0, 4 * T, 1, 1, false);
  simt::begin(engine());
  try {
    simt::run(plan->blocks, kW4axThreads, plan->blocks, static_cast<int>(plan->shared_bytes), engine(), [&] {
      blockDim.x = kW4axThreads;
      gemm_w4ax<T>(a, maps);
    });
  } catch (const std::exception& error) {
    return fail(error.what());
  }
  for (unsigned counter : counters)
    if (counter != 0) return fail("a counter was left");
  for (int t = 0; t < c.m; ++t)
    for (int r = 0; r < c.n; ++r) {
      float sum = 0;
      double size = 0;
      for (int b = 0; b < c.k_blocks; ++b) {
        double part = 0;
        for (int i = b * 128; i < b * 128 + 128; ++i) {
          const double p = xv[z(t) * z(k) + z(i)] * wv[z(r) * z(k) + z(i)];
          part += p;
        }
        const float scale = sx.data[z(b) * z(x_pitch) + z(t)] * sw.data[z(b) * z(w_pitch) + z(r)];
        sum = std::fma(static_cast<float>(part), scale, sum);
        size += std::fabs(part * scale);
      }
      const float want = sum + (c.bias ? bias[z(r)] : 0.0f);
      const auto round = [&](float v) {
        return c.store == kW4axStoreF32    ? v
               : c.store == kW4axStoreBf16 ? bf16_to_f32(f32_to_bf16(v))
                                           : f16_to_f32(f32_to_f16(v));
      };
      float got;
      uint16_t half;
      std::memcpy(&half, y.data + (z(t) * z(c.n) + z(r)) * element, 2);
      if (element == 4) std::memcpy(&got, y.data + (z(t) * z(c.n) + z(r)) * 4, 4);
      else got = c.store == kW4axStoreBf16 ? bf16_to_f32(half) : f16_to_f32(half);
      const bool exact = plan->shared == 0;
      const double unit = c.store == kW4axStoreF32 ? 0x1p-24 : c.store == kW4axStoreBf16 ? 0x1p-8 : 0x1p-11;
      const double bound =
          exact ? 0 : (c.k_blocks + 16) * 0x1p-24 * (size + std::fabs(want)) + 2 * unit * std::fabs(want) + 0x1p-24;
      const double off = std::fabs(static_cast<double>(got) - round(want));
      if (!(off <= bound))
        return fail("y[" + std::to_string(t) + "][" + std::to_string(r) + "] is " + std::to_string(got) + ", not " +
                    std::to_string(want));
      if (bound > 0) worst = std::max(worst, off / bound);
    }
}

void all(const char* name) {
  const int stores[] = {kW4axStoreF32, kW4axStoreF16, kW4axStoreBf16};
  static int at = 0;
  run<2>(name, {5, 40, 2, 2, 1, 0, 0, stores[at++ % 3], true});
  run<2>(name, {33, 264, 3, 4, 2, 2, 2, stores[at++ % 3], false});
  run<16>(name, {20, 300, 2, 2, 1, 0, 2, stores[at++ % 3], true});
#ifdef LPQ_ALL_FORMS
  run<4>(name, {33, 264, 3, 4, 2, 2, 2, stores[at++ % 3], false});
  run<8>(name, {70, 40, 3, 3, 1, 2, 3, stores[at++ % 3], true});
  run<16>(name, {290, 140, 3, 4, 2, 2, 2, stores[at++ % 3], true});
  for (int i = 0; i < 6; ++i) {
    const Case c{between(1, 200),
                 between(1, 600),
                 between(1, 6),
                 between(2, 5),
                 between(1, 2),
                 between(0, 1) ? 0 : between(1, 6),
                 between(0, 1) * between(2, 4),
                 stores[at++ % 3],
                 between(0, 1) == 1};
    run<2>(name, {c.m % 40 + 1, c.n, c.k_blocks, c.processors, c.cluster, c.shared, c.stages, c.store, c.bias});
    run<8>(name, c), run<16>(name, c);
  }
#endif
}

}  // namespace

int main() {
  all("w4ax");
  std::printf("%lld products, %lld failures, at most %.2f of the bound\n", products, failures, worst);
  return failures != 0;
}
