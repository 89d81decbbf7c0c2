// The layout kernels (native/cuda/layout/pack.cu) run by the host for the fake driver.
#include <mutex>
#include <string>
#include <utility>

#include "simulator.h"
// The kernels' own sources.
#include "cuda/layout/pack.cu"

namespace {

template <class... Args>
void run(void (*kernel)(Args...), unsigned grid, unsigned threads, unsigned shared, void** arguments) {
  simt::run(static_cast<int>(grid), static_cast<int>(threads), 1, static_cast<int>(shared), 1, [&] {
    [&]<size_t... I>(std::index_sequence<I...>) {
      kernel(*static_cast<Args*>(arguments[I])...);
    }(std::index_sequence_for<Args...>{});
  });
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void fake_kernel(const char* name, unsigned grid, unsigned threads,
                                                                   unsigned shared, void** arguments) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  const std::string kernel = name;
  const auto launch = [&](auto function) { run(function, grid, threads, shared, arguments); };
  using namespace lpq::cuda;
  if (kernel == "lpq_layout_pack") launch(lpq_layout_pack);
  if (kernel == "lpq_layout_pack_runs") launch(lpq_layout_pack_runs);
  if (kernel == "lpq_layout_unpack") launch(lpq_layout_unpack);
  if (kernel == "lpq_layout_check_order") launch(lpq_layout_check_order);
#define LPQ_QUADS(bits) \
  if (kernel == "lpq_layout_pack_quads_" #bits) launch(lpq_layout_pack_quads_##bits);
  LPQ_QUADS(1)
  LPQ_QUADS(2)
  LPQ_QUADS(3)
  LPQ_QUADS(4)
  LPQ_QUADS(5)
  LPQ_QUADS(6)
  LPQ_QUADS(7)
  LPQ_QUADS(8)
}
