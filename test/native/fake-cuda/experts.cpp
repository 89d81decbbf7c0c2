// The kernels of experts (native/cuda/gemm/kernels/experts*.cuh) and of their rows
// (native/cuda/nn/expert_rows.cu) run by the host for the fake driver: what the operations launch, with the arguments
// that they launch it with.
#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "asynchronous.h"
#include "cuda/gemm/interleave_gates.cu"
#include "cuda/gemm/kernels/experts.cuh"
#include "cuda/gemm/kernels/experts_scaled.cuh"
#include "cuda/gemm/kernels/experts_sm90.cuh"
#include "cuda/gemm/kernels/experts_wide.cuh"
#include "cuda/gemm/kernels/pad_rows.cu"
#include "cuda/nn/expert_rows.cu"

#define LPQ_WEIGHTS_BF16 false
LPQ_EXPERTS(int4_f16, 2, 512, 4, false, IntCast)
LPQ_EXPERTS(int4_f16, 8, 256, 4, false, IntCast)
#undef LPQ_WEIGHTS_BF16
#define LPQ_WEIGHTS_BF16 true
LPQ_EXPERTS(float6_bf16, 2, 512, 6, true, FloatCast)
LPQ_EXPERTS_HOPPER(float6_bf16, 2, 6, true, FloatCast)
LPQ_EXPERTS_WIDE(int4_f16, 8, 4, false, IntCast, _o, true)
LPQ_EXPERTS_WIDE(int4_f16, 4, 4, false, IntCast, _o, true)
LPQ_EXPERTS_WIDE(int4_f16, 2, 4, false, IntCast, _o, true)
LPQ_EXPERTS_WIDE(int4_f16, 2, 4, false, IntCast, _g, false)
LPQ_EXPERTS_WIDE(int4_f16, 4, 4, false, IntCast, _g, false)
LPQ_EXPERTS_SCALED(int4_f16, c, 16, 2, 4, false, false, true)

namespace {

// `at_once`: blocks that wait for each other.
template <class... Args>
void run(void (*kernel)(Args...), unsigned grid, unsigned at_once, unsigned threads, unsigned shared,
         void** arguments) {
  simt::begin(1);
  gridDim.x = grid;
  simt::run(static_cast<int>(grid), static_cast<int>(threads), static_cast<int>(at_once), static_cast<int>(shared), 1,
            [&] {
              blockDim.x = threads;
              [&]<size_t... I>(std::index_sequence<I...>) {
                kernel(*static_cast<Args*>(arguments[I])...);
              }(std::index_sequence_for<Args...>{});
            });
}

template <class T>
T argument(void** arguments, int i) {
  return *static_cast<T*>(arguments[i]);
}

// The simulator does not have what native/cuda/nn/elementwise.cu is written with: what stands between the products of a
// mixture, plainly, by number of the activation (ops/elementwise.h).
double activated(int act, double x) {
  switch (act) {
    case 1: return x / 2 * std::erfc(-x / std::sqrt(2));
    case 2: return x / (1 + std::exp(-2 * std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    case 3: return std::max(x, 0.0);
    case 4: return std::max(x, 0.0) * std::max(x, 0.0);
    case 5: return x / (1 + std::exp(-1.702 * x));
    case 6: return 1 / (1 + std::exp(-x));
    default: return x / (1 + std::exp(-x));
  }
}
void gated_rows(void** arguments) {
  const auto *gate = argument<const uint16_t*>(arguments, 0), *up = argument<const uint16_t*>(arguments, 1);
  auto* y = argument<uint16_t*>(arguments, 2);
  const int act = argument<int>(arguments, 3);
  const auto rows = argument<long long>(arguments, 4), width = argument<long long>(arguments, 5),
             gate_pitch = argument<long long>(arguments, 6), up_pitch = argument<long long>(arguments, 7);
  for (long long row = 0; row < rows; ++row)
    for (long long i = 0; i < width; ++i) {
      const float g = lpq::cuda::to_float(gate[row * gate_pitch + i], false);
      const float u = lpq::cuda::to_float(up[row * up_pitch + i], false);
      y[row * width + i] = lpq::cuda::from_float<false>(static_cast<float>(activated(act, g)) * u);
    }
}

// Grouping of more rows than one block sees (native/cuda/nn/routing.cu), likewise.
void count_experts(void** arguments) {
  const auto* indices = argument<const int32_t*>(arguments, 0);
  auto* counts = argument<int32_t*>(arguments, 2);
  std::fill_n(counts, argument<int>(arguments, 3), 0);
  for (int i = 0; i < argument<int>(arguments, 1); ++i) ++counts[indices[i]];
}
void group_rows(void** arguments) {
  const auto* indices = argument<const int32_t*>(arguments, 0);
  const auto* offsets = argument<const int32_t*>(arguments, 2);
  auto* rows = argument<int32_t*>(arguments, 3);
  std::vector<int32_t> next;
  for (int i = 0; i < argument<int>(arguments, 1); ++i) {
    while (next.size() <= static_cast<size_t>(indices[i])) next.push_back(offsets[next.size()]);
    rows[next[static_cast<size_t>(indices[i])]++] = i;
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void fake_kernel(const char* name, unsigned grid, unsigned threads,
                                                                   unsigned shared, void** arguments) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  const std::string kernel = name;
  const auto product = [&](auto function) { run(function, grid, grid, threads, shared, arguments); };
  const auto rows = [&](auto function) { run(function, grid, 1, threads, shared, arguments); };
#define LPQ_PRODUCT(name) \
  if (kernel == "lpq_experts_" #name) product(lpq_experts_##name);
  LPQ_PRODUCT(int4_f16_t2)
  LPQ_PRODUCT(int4_f16_t8)
  LPQ_PRODUCT(float6_bf16_t2)
  LPQ_PRODUCT(float6_bf16_h2)
  LPQ_PRODUCT(int4_f16_m8_o)
  LPQ_PRODUCT(int4_f16_m4_o)
  LPQ_PRODUCT(int4_f16_m2_o)
  LPQ_PRODUCT(int4_f16_m2_g)
  LPQ_PRODUCT(int4_f16_m4_g)
  LPQ_PRODUCT(int4_f16_c16x2)
  if (kernel == "lpq_interleave_words_4") rows(lpq_interleave_words_4);
  if (kernel == "lpq_interleave_words_6") rows(lpq_interleave_words_6);
  if (kernel == "lpq_interleave_u8") rows(lpq_interleave_u8);
  if (kernel == "lpq_interleave_u16") rows(lpq_interleave_u16);
  if (kernel == "lpq_pad_rows") rows(lpq_pad_rows);
  if (kernel == "lpq_group_few") rows(lpq_group_few);
  if (kernel == "lpq_expert_offsets") rows(lpq_expert_offsets);
  if (kernel == "lpq_invert_rows") rows(lpq_invert_rows);
  if (kernel == "lpq_gated_rows_f16") gated_rows(arguments);
  if (kernel == "lpq_count_experts") count_experts(arguments);
  if (kernel == "lpq_group_rows") group_rows(arguments);
  if (kernel == "lpq_combine_few_f16") rows(lpq_combine_few_f16);
  if (kernel == "lpq_combine_f16") rows(lpq_combine_f16);
#define LPQ_ROWS(type, name)                                    \
  if (kernel == "lpq_gather_" #name) rows(lpq_gather_##name);   \
  if (kernel == "lpq_scatter_" #name) rows(lpq_scatter_##name); \
  if (kernel == "lpq_scatter_few_" #name) rows(lpq_scatter_few_##name);
  LPQ_EACH_TYPE(LPQ_ROWS)
}
