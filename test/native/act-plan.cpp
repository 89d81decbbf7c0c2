// Cuts of W4Ax, at random: every step is done once, and who is waited for comes.
#include <cstdio>
#include <random>
#include <vector>

#include "cuda/gemm/families/w4ax_plan.h"

using namespace lpq::cuda;

int main() {
  int failures = 0;
  std::mt19937 random(7);
  const auto between = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  const int tokens[] = {0, 16, 32, 64, 128};
  for (int i = 0; i < 4000; ++i) {
    const int64_t m = between(0, 3) ? between(1, 300) : between(1, 5000), n = between(1, 9000),
                  k = 128 * between(1, 40);
    lpq::ops::GemmSettings wish;
    wish.tokens = tokens[between(0, 4)], wish.cluster = between(0, 2), wish.stages = between(0, 1) * between(2, 16),
    wish.shared = between(0, 1) ? -1 : between(0, 400);
    const int processors = between(0, 4) ? 132 : between(2, 80);
    const auto plan = plan_w4ax(processors, 232448, m, n, k, wish);
    const auto wrong = [&](const char* what) {
      ++failures;
      std::printf("%s: m %lld n %lld k %lld, tokens %lld cluster %lld stages %lld shared %lld, %d processors\n", what,
                  (long long)m, (long long)n, (long long)k, (long long)wish.tokens, (long long)wish.cluster,
                  (long long)wish.stages, (long long)wish.shared, processors);
    };
    if (!plan) {
      if (!(wish.cluster == 2 && processors < 2)) wrong("no plan");
      continue;
    }
    if (plan->blocks > processors || plan->blocks % plan->cluster || plan->shared_bytes > 232448 || plan->stages < 2)
      wrong("does not fit");
    W4axArgs a{};
    a.k_blocks = static_cast<int>(k / 128), a.token_tiles = plan->token_tiles, a.items = plan->items,
    a.shared = plan->shared;
    // Every step of every item once; who shares an item is who the sums are waited for.
    std::vector<int> seen(static_cast<size_t>(a.items) * static_cast<size_t>(a.k_blocks));
    const int units = plan->blocks / plan->cluster;
    const long long total = static_cast<long long>(a.shared) * a.k_blocks;
    std::vector<int> sharers(static_cast<size_t>(a.items));
    for (int unit = 0; unit < units; ++unit) {
      W4axWalk walk(a, unit, units);
      int last = -1;
      for (int step = 0; step < walk.steps; ++step) {
        if (walk.item < 0 || walk.item >= a.items) {
          wrong("leaves the items");
          break;
        }
        ++seen[static_cast<size_t>(walk.item) * static_cast<size_t>(a.k_blocks) + static_cast<size_t>(walk.kb)];
        if (walk.item != last) ++sharers[static_cast<size_t>(last = walk.item)];
        walk.next(a);
      }
    }
    for (int count : seen)
      if (count != 1) {
        wrong("a step is not done once");
        break;
      }
    for (int item = 0; item < a.items; ++item) {
      int expected = 1;
      if (item < a.shared) {
        const long long begin = static_cast<long long>(item) * a.k_blocks, end = begin + a.k_blocks;
        expected =
            static_cast<int>((end * units - 1) / total) - static_cast<int>(((begin + 1) * units - 1) / total) + 1;
      }
      if (sharers[static_cast<size_t>(item)] != expected) {
        wrong("waits for others than share an item");
        break;
      }
    }
  }
  std::printf("%d failures\n", failures);
  return failures != 0;
}
