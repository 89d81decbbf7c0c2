// W4Ax of few tokens (native/cuda/gemm/kernels/w4ax_few.cuh), the kernel's own source on the simulated device
// (simulator/): one and two tiles of tokens, mixtures of blocks, rows in one pass and in many, activations that fit
// shared memory and such that do not, tails, all three outputs. Sums are 64-bit integers of each block of k, and fp32
// in the order that the kernel's header states: equal bit by bit.
#include "w4ax-case.h"
//
#include "cuda/gemm/kernels/w4ax_few.cuh"

using namespace lpq;
using namespace lpq::cuda;

namespace {

struct Case {
  int m, n, k_blocks, fours, processors, room, store;
  bool bias, overlap;
};

long long checks = 0, failures = 0;

void run(const Case& c) {
  const bool bf16 = c.store == kW4axStoreBf16;
  W4ax of(c.m, c.n, c.k_blocks, c.fours, c.store == kW4axStoreF32 ? 4 : 2);
  const FewPlan p = plan_few(c.processors, c.room, c.m, c.n, c.k_blocks);
  FewArgs a{};
  of.tell(a, c.store, c.bias);
  a.rows = p.rows, a.at_once = p.at_once, a.split = p.split, a.resident = p.resident, a.overlap = c.overlap;
  simt::begin(engine());
  const std::string error = simt::try_run(p.blocks, 32 * kFewWarps, 1, simt::kShared, engine(), [&] {
    if (p.tiles == 1) p.kernel_rows == 2 ? gemm_few<1, 2, 2>(a) : gemm_few<1, 4, 1>(a);
    else p.kernel_rows == 2 ? gemm_few<2, 2, 2>(a) : gemm_few<2, 4, 1>(a);
  });
  const std::string text = std::to_string(c.m) + "x" + std::to_string(c.n) + "x" + std::to_string(of.k) + " fours " +
                           std::to_string(of.fours) + " blocks " + std::to_string(p.blocks) + " rows " +
                           std::to_string(p.at_once) + " split " + std::to_string(p.split) +
                           (p.resident ? " resident" : "") + " store " + std::to_string(c.store);
  const auto wrong = [&](const std::string& what) {
    if (++failures <= 20) std::printf("FAIL %s: %s\n", text.c_str(), what.c_str());
  };
  if (!error.empty()) return wrong(error);
  if (of.overrun()) return wrong("something was written behind y");
  for (int t = 0; t < c.m; ++t)
    for (int r = 0; r < c.n; ++r) {
      float all = 0;
      for (int w = 0; w < p.split; ++w) {
        float sum = 0;
        for (int b = w; b < c.k_blocks; b += p.split) sum = std::fma(of.part(t, r, b), of.factor(t, r, b), sum);
        all += sum;
      }
      const float want = of.rounded(all + (c.bias ? of.bias[static_cast<size_t>(r)] : 0.0f), bf16),
                  got = of.got(t, r, bf16);
      ++checks;
      if (!(got == want))
        return wrong("y[" + std::to_string(t) + "][" + std::to_string(r) + "] is " + std::to_string(got) + ", not " +
                     std::to_string(want));
    }
}

}  // namespace

int main() {
  const int stores[] = {kW4axStoreF32, kW4axStoreF16, kW4axStoreBf16};
  int at = 0;
  const auto one = [&](int m, int n, int k_blocks, int fours, int processors, int room = 231424) {
    run({m, n, k_blocks, fours, processors, room, stores[at % 3], at % 2 == 1, at % 4 < 2});
    ++at;
  };
  // One tile; tails; passes of few rows and of many, K shared by 16 warps and by fewer; activations that do not fit.
  one(1, 16, 1, 100, 1), one(5, 40, 2, 0, 2), one(8, 50, 17, 60, 2), one(9, 33, 34, 50, 3), one(16, 130, 35, 75, 2),
      one(3, 150, 20, 50, 1), one(12, 500, 9, 50, 1);
  one(2, 1100, 3, 50, 1), one(16, 72, 50, 40, 1, 150000), one(7, 180, 70, 60, 2, 100000);
#ifdef LPQ_ALL_FORMS
  for (int i = 0; i < 20; ++i)
    one(between(1, 16), between(1, 900), between(1, 80), between(0, 100), between(1, 9),
        between(0, 1) ? 231424 : 135000);
#endif
  // Plans fit; a pass has no more rows than the kernel, and all passes all rows.
  for (int i = 0; i < 3000; ++i) {
    const int processors = between(1, 140), m = between(1, 16), n = between(1, 70000), k_blocks = between(1, 512);
    const FewPlan p = plan_few(processors, 232448, m, n, k_blocks);
    const bool right = p.shared_bytes > 0 && p.shared_bytes <= 232448 && p.at_once >= 1 && p.split >= 1 &&
                       p.split <= kFewWarps && (p.resident || p.split == kFewWarps) && p.at_once <= p.kernel_rows &&
                       p.blocks >= 1 && p.blocks <= processors && p.blocks <= p.rows && 16 * p.rows >= n &&
                       16 * (p.rows - 1) < n && 8 * p.tiles >= m;
    ++checks;
    if (!right && ++failures <= 20)
      std::printf("FAIL plan of %dx%d, %d blocks of k, %d multiprocessors\n", m, n, k_blocks, processors);
  }
  std::printf("%lld checks, %lld failures\n", checks, failures);
  return failures != 0;
}
