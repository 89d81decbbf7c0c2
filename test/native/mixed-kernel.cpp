// W4Ax without wgmma (native/cuda/gemm/kernels/w4ax_mixed.cuh), the kernel's own source on the simulated device
// (simulator/): tiles, mixtures of blocks, cuts of the work, tails, all three outputs. Activations and weights are laid
// out by their closed forms (native/w4ax-ops.ts, docs/internals/layouts/comet.md), sums are 64-bit integers and an fp32
// chain over blocks.
//
// Where no item is shared the result is that chain's, bit by bit; else each of at most k_blocks + units additions is
// within 2^-24 of the magnitudes that went in, and y is rounded once.
#include "w4ax-case.h"
//
#include "cuda/gemm/kernels/w4ax_mixed.cuh"

using namespace lpq;
using namespace lpq::cuda;

namespace {

struct Case {
  int m, n, k_blocks, fours;  // fours: of a hundred
  int units, shared;          // blocks of the grid; items that are shared, at most as many as there are
  int stages, store;
  bool bias;
};

long long checks = 0, failures = 0, shared_steps = 0;

template <int T>
void run(const Case& c) {
  const bool bf16 = c.store == kW4axStoreBf16;
  W4ax of(c.m, c.n, c.k_blocks, c.fours, c.store == kW4axStoreF32 ? 4 : 2);
  MixedArgs a{};
  of.tell(a, c.store, c.bias);
  a.token_tiles = (c.m + 8 * T - 1) / (8 * T), a.items = (c.n + kMixedRows - 1) / kMixedRows * a.token_tiles,
  a.shared = std::min(c.shared, a.items);
  a.stages = c.stages;
  const int units = std::min(c.units, std::max(a.shared * a.k_blocks, a.items - a.shared));
  std::vector<float> partial(static_cast<size_t>(2 * units) * MixedTile<T>::kParts, NAN);
  std::vector<unsigned> counters(static_cast<size_t>(a.items), 0);
  a.partial = partial.data(), a.counters = counters.data();
  simt::begin(engine());
  const std::string error =
      simt::try_run(units, kMixedThreads, units, simt::kShared, engine(), [&] { gemm_mixed<T>(a); });

  const std::string text = "T" + std::to_string(T) + " " + std::to_string(c.m) + "x" + std::to_string(c.n) + "x" +
                           std::to_string(of.k) + " fours " + std::to_string(of.fours) + " units " +
                           std::to_string(units) + " shared " + std::to_string(a.shared) + " stages " +
                           std::to_string(c.stages) + " store " + std::to_string(c.store);
  const auto wrong = [&](const std::string& what) {
    if (++failures <= 20) std::printf("FAIL %s: %s\n", text.c_str(), what.c_str());
  };
  if (!error.empty()) return wrong(error);
  for (unsigned counter : counters)
    if (counter != 0) return wrong("a counter was left at " + std::to_string(counter));
  if (of.overrun()) return wrong("something was written behind y");
  shared_steps += a.shared * a.k_blocks;
  for (int t = 0; t < c.m; ++t)
    for (int r = 0; r < c.n; ++r) {
      float sum = 0;
      double size = 0;
      for (int b = 0; b < c.k_blocks; ++b) {
        sum = std::fma(of.part(t, r, b), of.factor(t, r, b), sum);
        size += std::fabs(static_cast<double>(of.part(t, r, b)) * of.factor(t, r, b));
      }
      const float want = sum + (c.bias ? of.bias[static_cast<size_t>(r)] : 0.0f), got = of.got(t, r, bf16),
                  rounded = of.rounded(want, bf16);
      const double unit = c.store == kW4axStoreF32 ? 0x1p-24 : c.store == kW4axStoreBf16 ? 0x1p-8 : 0x1p-11;
      const double bound = a.shared ? (c.k_blocks + units + 2) * 0x1p-24 * (size + std::fabs(want)) +
                                          2 * unit * std::fabs(want) + 0x1p-24
                                    : 0;
      ++checks;
      if (!(std::fabs(static_cast<double>(got) - rounded) <= bound))
        return wrong("y[" + std::to_string(t) + "][" + std::to_string(r) + "] is " + std::to_string(got) + ", not " +
                     std::to_string(rounded));
    }
}

}  // namespace

int main() {
  const int stores[] = {kW4axStoreF32, kW4axStoreF16, kW4axStoreBf16};
  int at = 0;
  const auto cases = [&]<int T>() {
    // One item and one step; all of one precision; a row of items that all blocks share; more blocks than steps of an
    // item; whole and shared.
    run<T>({1, 16, 1, 100, 1, 0, 2, stores[at++ % 3], false});
    run<T>({5, 40, 2, 0, 2, 0, 3, stores[at++ % 3], true});
    run<T>({8 * T + 3, 130, 3, 60, 3, 4, 4, stores[at++ % 3], true});
    run<T>({9, 150, 5, 50, 7, 2, 4, stores[at++ % 3], false});
#ifdef LPQ_ALL_FORMS
    for (int i = 0; i < 12; ++i)
      run<T>({between(1, 20 * T), between(1, 500), between(1, 9), between(0, 100), between(1, 9), between(0, 9),
              between(2, 4), stores[at++ % 3], between(0, 1) == 1});
#endif
  };
  cases.template operator()<2>();
  cases.template operator()<8>();
  cases.template operator()<16>();
  // Cuts by cost: in order, all steps once, and no share further than a block from its part of the cost.
  for (int i = 0; i < 3000; ++i) {
    const int k_blocks = between(1, 40), shared = between(1, 30), units = between(1, 140);
    std::vector<int> prefix(static_cast<size_t>(k_blocks) + 1, 0);
    for (int b = 0; b < k_blocks; ++b)
      prefix[static_cast<size_t>(b) + 1] = prefix[static_cast<size_t>(b)] + (between(0, 3) ? kMixedCost4 : kMixedCost8);
    const auto cost_at = [&](int step) {
      return static_cast<double>(step / k_blocks) * prefix.back() + prefix[static_cast<size_t>(step % k_blocks)];
    };
    bool right = mixed_start(prefix.data(), k_blocks, shared, 0, units) == 0 &&
                 mixed_start(prefix.data(), k_blocks, shared, units, units) == shared * k_blocks;
    for (int u = 0; u < units; ++u) {
      const int first = mixed_start(prefix.data(), k_blocks, shared, u, units),
                last = mixed_start(prefix.data(), k_blocks, shared, u + 1, units);
      right = right && first <= last &&
              std::fabs(cost_at(first) - static_cast<double>(shared) * prefix.back() * u / units) <= kMixedCost8;
    }
    ++checks;
    if (!right && ++failures <= 20)
      std::printf("FAIL cuts of %d blocks, %d items, %d units\n", k_blocks, shared, units);
  }
  // Plans fit an A100 and the 99 KiB of 8.6 and 8.9, and have no more blocks than multiprocessors or steps.
  for (int i = 0; i < 2000; ++i) {
    const int processors = between(1, 140), m = between(1, 600), n = between(1, 9000), k_blocks = between(1, 512),
              memory = between(0, 1) ? 166912 : 101376;
    const int tokens[] = {0, 0, 16, 64, 128};
    const MixedPlan p =
        plan_mixed(processors, memory, m, n, k_blocks, tokens[between(0, 4)], between(0, 1) ? -1 : between(0, 50));
    const bool right = p.stages >= 2 && p.shared_bytes <= static_cast<unsigned>(memory) && p.blocks >= 1 &&
                       p.blocks <= processors && p.shared <= p.items && p.items >= 1 &&
                       (p.shared == 0 || static_cast<int64_t>(p.shared) * k_blocks + p.items - p.shared >= p.blocks);
    ++checks;
    if (!right && ++failures <= 20)
      std::printf("FAIL plan of %dx%d, %d blocks of k, %d multiprocessors\n", m, n, k_blocks, processors);
  }
  std::printf("%lld checks, %lld shared steps, %lld failures\n", checks, shared_steps, failures);
  return failures != 0;
}
