// The kernels of norms' gradients (native/cuda/nn/backward_norms.cuh), run on the host by threads that the host plays:
// rows of warps and of blocks, held and read again, with tails, turns, weights of every type, added and in place of dy;
// against double precision, elementwise (norm_gradient.h).
#include <cstdio>
#include <random>
#include <string>

#include "asynchronous.h"
#include "norm_gradient.h"
#define __shared__ static  // blocks run one after another

#include "cuda/nn/backward_norms.cuh"

namespace {

int checks = 0, failures = 0;
double worst = 0;

void one(bool layer, bool held, int rows, int width, int threads, int turns, int type, int how) {
  std::mt19937_64 lot(static_cast<uint64_t>(++checks));
  std::normal_distribution<double> normal;
  const size_t count = static_cast<size_t>(rows) * static_cast<size_t>(width),
               gains = static_cast<size_t>(turns * width);
  std::vector<float> x(count), dy(count), dx(count), wide(gains);
  std::vector<uint16_t> narrow(gains);
  for (size_t i = 0; i < count; ++i) {
    x[i] = static_cast<float>(3 * normal(lot) + (layer ? 1.5 : 0)), dy[i] = static_cast<float>(normal(lot));
    dx[i] = how == 1 ? static_cast<float>(normal(lot)) : NAN;
  }
  std::vector<double> gain(gains, 1.0);
  for (size_t i = 0; i < gains && type >= 0; ++i) {
    wide[i] = static_cast<float>(normal(lot));
    narrow[i] = type == 1 ? lpq::f32_to_f16(wide[i]) : lpq::f32_to_bf16(wide[i]);
    gain[i] = 0.5 + (type == 0   ? static_cast<double>(wide[i])
                     : type == 1 ? static_cast<double>(lpq::f16_to_f32(narrow[i]))
                                 : static_cast<double>(lpq::bf16_to_f32(narrow[i])));
  }
  const auto numbers = [](const std::vector<float>& list) { return std::vector<double>(list.begin(), list.end()); };
  const auto expected = lpq::test::norm_gradients(layer, static_cast<size_t>(width), static_cast<size_t>(turns),
                                                  static_cast<double>(1e-5f), numbers(x), numbers(dy), gain,
                                                  how == 1 ? numbers(dx) : std::vector<double>{});
  std::vector<float>& to = how == 2 ? dy : dx;
  const bool by_warp = width <= 512;
  const void* weight = type < 0 ? nullptr : type == 0 ? static_cast<const void*>(wide.data()) : narrow.data();
  const lpq::NormGradient a{x.data(), dy.data(), weight, to.data(), rows,     std::max(type, 0),
                            width,    turns,     1e-5f,  0.5f,      how == 1, by_warp};
  const int blocks = by_warp ? (rows + threads / 32 - 1) / (threads / 32) : rows;
  std::string wrong = simt::try_run(blocks, threads, 1, 16, static_cast<uint64_t>(checks), [&] {
    if (layer && held) lpq::layernorm_backward<lpq::HeldRow>(a);
    else if (layer) lpq::layernorm_backward<lpq::ReadRow>(a);
    else if (held) lpq::rmsnorm_backward<lpq::HeldRow>(a);
    else lpq::rmsnorm_backward<lpq::ReadRow>(a);
  });
  for (size_t i = 0; i < count && wrong.empty(); ++i) {
    const double share = std::fabs(static_cast<double>(to[i]) - expected.want[i]) / expected.bound[i];
    if (share <= 1) worst = std::max(worst, share);
    else
      wrong = "has " + std::to_string(to[i]) + " at " + std::to_string(i) + ", not " + std::to_string(expected.want[i]);
  }
  if (wrong.empty()) return;
  ++failures;
  std::printf("FAIL %s%s of %d rows of %d by %d threads: %s\n", layer ? "layernorm" : "rmsnorm", held ? ", held" : "",
              rows, width, threads, wrong.c_str());
}

}  // namespace

int main() {
  for (const bool layer : {false, true}) {
    const int turns = layer ? 3 : 1;
    for (int how = 0; how < 3; ++how) {
      one(layer, true, 9, 512, 256, turns, how, how);
      one(layer, true, 12, 4, 256, turns, -1, how);
      one(layer, true, 9, 132, 256, turns, 2 - how, how);
      one(layer, true, 3, 516, 64, turns, how, how);
      one(layer, true, 3, 4096, 256, turns, how, how);
      one(layer, true, 3, 1000, 64, turns, -1, how);
      one(layer, false, 9, 1, 256, turns, how, how);
      one(layer, false, 9, 129, 256, turns, how, how);
      one(layer, false, 3, 513, 256, turns, 2 - how, how);
      one(layer, false, 3, 3001, 512, turns, -1, how);
    }
  }
  std::printf("%d gradients, %d failures, at most %.2f of the bound\n", checks, failures, worst);
  return failures;
}
