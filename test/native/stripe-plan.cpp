// Cuts of products of MARLIN's and TurboMind's layouts (stripes_plan.h), at random: they fit the kernel and the device,
// none that is allowed has a lower estimate, every wish that fits is granted, every step is somebody's, and where there
// is more to do the busiest block never has less.
#include <cstdio>
#include <random>
#include <vector>

#include "cuda/gemm/families/stripes_plan.h"

using namespace lpq::cuda;

int main() {
  int failures = 0;
  std::mt19937 random(11);
  const auto between = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  const int64_t memories[] = {101376, 166912, 232448};  // of 8.6 and 8.9, 8.0, 9.0
  for (int i = 0; i < 3000; ++i) {
    StripeProduct p{between(0, 3) ? between(1, 70) : between(1, 5000), 64 * between(1, 900), 32 * between(1, 900)};
    p.bits = between(0, 1) ? 4 : 8;
    p.scale_bytes = between(0, 2) ? static_cast<int>(2 * between(1, 2)) : 1;  // f16, {s, t}, ue8m0
    p.zero_bytes = between(0, 3) ? 0 : 8 * p.bits;
    p.group_shift = static_cast<int>(between(5, 7));
    p.channel = between(0, 4) == 0;
    const int64_t memory = memories[between(0, 2)];
    const int processors = static_cast<int>(between(0, 3) ? 132 : between(20, 142));
    const auto wrong = [&](const char* what) {
      if (++failures <= 20)
        std::printf("%s: m %lld n %lld k %lld u%d, %lld bytes, %d processors\n", what, (long long)p.m,
                    (long long)p.n_pad, (long long)p.k_pad, p.bits, (long long)memory, processors);
    };
    const auto plan = plan_stripes(processors, memory, p);
    if (!plan) {
      wrong("no plan");
      continue;
    }
    const int most = plan->tiles <= 2 ? 4 : 3;
    if (plan->log_n < 0 || plan->log_k < 0 || plan->log_n + plan->log_k > most || plan->stages < 2 ||
        plan->stages > 4 || plan->blocks > processors)
      wrong("a cut that the kernel does not have");
    if (plan->shared > memory || plan->shared != stripe_shared(*plan, p)) wrong("does not fit");
    if (8 * plan->tiles < std::min<int64_t>(p.m, 64) || (plan->tiles > 1 && 4 * plan->tiles >= p.m))
      wrong("tiles that are not the least that hold the tokens");
    // The busiest block's steps cover all of them, and no block has none where all have some.
    const int64_t step = stripe_step(plan->log_k, p.bits), steps = (p.k_pad + step - 1) / step,
                  width = int64_t{kTileColumns} << plan->log_n;
    const int64_t all = (p.n_pad + width - 1) / width * ((p.m + 8 * plan->tiles - 1) / (8 * plan->tiles)) * steps;
    if (plan->per * plan->blocks < all || (plan->per - 1) * plan->blocks >= all)
      wrong("a share that is not the least that covers all steps");
    // Blocks that share a column, counted.
    if (all < 60000) {
      int64_t worst = 1;
      for (int64_t column = 0; column < all / steps; ++column)
        worst = std::max(worst, ((column + 1) * steps - 1) / plan->per - column * steps / plan->per + 1);
      if (worst > plan->sharers) wrong("more blocks share a column than were told");
    }
    // Any other division of the warps takes as long, and whatever fits is granted.
    for (int log_n = 0; log_n <= most; ++log_n)
      for (int log_k = 0; log_n + log_k <= most; ++log_k)
        for (int stages = 0; stages <= 4; stages += stages ? 1 : 2) {
          StripePlan wished = *plan;
          wished.log_n = log_n, wished.log_k = log_k, wished.stages = stages ? stages : 2;
          const bool fits = stripe_shared(wished, p) <= memory;
          const auto got =
              plan_stripes(processors, memory, p,
                           {.warps_n = int64_t{1} << log_n, .warps_k = int64_t{1} << log_k, .stages = stages});
          if (got.has_value() != fits) wrong("a wish that fits was refused, or one that does not was granted");
          if (got && (got->log_n != log_n || got->log_k != log_k || (stages && got->stages != stages)))
            wrong("a wish that was not kept");
          if (got && log_n + log_k == most && got->microseconds < plan->microseconds)
            wrong("a cut with a lower estimate was not taken");
        }
    // More tokens, columns or rows in the same tiles: never less for the busiest block.
    for (int which = 0; which < 3; ++which) {
      StripeProduct more = p;
      (which == 0 ? more.m : which == 1 ? more.n_pad : more.k_pad) *= 2;
      StripePlan same = *plan;
      estimate_stripes(same, more);
      if (same.per < plan->per) wrong("more work, a smaller share");
    }
    if (plan_stripes(processors, memory, p, {.blocks = processors + 1}) ||
        plan_stripes(processors, memory, p, {.warps_n = 3}) || plan_stripes(processors, memory, p, {.stages = 5}))
      wrong("a wish that nothing has was granted");
  }
  std::printf("%d failures\n", failures);
  return failures != 0;
}
