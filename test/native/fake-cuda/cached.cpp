// The kernels of kept rows (native/cuda/attention/cached.cuh and cache_rows.cu) and of a sum with its norm
// (native/cuda/nn/add_norm.cu) run by the host for the fake driver: what the operations launch, with the arguments that
// they launch it with.
#include <mutex>
#include <string>
#include <utility>

#include "asynchronous.h"
#include "cuda/attention/cached.cuh"

namespace {
struct Index {
  unsigned x, y;
};
Index block_shape{1, 1};
Index own_thread() { return {threadIdx.x % block_shape.x, threadIdx.x / block_shape.x}; }
}  // namespace

#define threadIdx own_thread()
#define blockDim block_shape
#include "cuda/attention/cache_rows.cu"
#include "cuda/nn/add_norm.cu"
#undef threadIdx
#undef blockDim

namespace {

template <class... Args>
void run(void (*kernel)(Args...), unsigned grid, Index block, void** arguments, unsigned shared = 0) {
  block_shape = block;
  simt::run(static_cast<int>(grid), static_cast<int>(block.x * block.y), 1, static_cast<int>(shared), 1, [&] {
    [&]<size_t... I>(std::index_sequence<I...>) {
      kernel(*static_cast<Args*>(arguments[I])...);
    }(std::index_sequence_for<Args...>{});
  });
}

}  // namespace

LPQ_CACHED(f16, false, 64)
LPQ_CACHED(f16, false, 128)
LPQ_CACHED(bf16, true, 128)

extern "C" __attribute__((visibility("default"))) void fake_kernel(const char* name, unsigned grid, unsigned threads,
                                                                   unsigned shared, void** arguments) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  const std::string kernel = name;
  simt::begin(1);
  const auto tensor_cores = [&](auto function) {
    const auto& a = *static_cast<lpq::cuda::CachedArgs*>(arguments[0]);
    simt::run(static_cast<int>(grid), static_cast<int>(threads), 1, static_cast<int>(shared), 1, [&] { function(a); });
  };
#define LPQ_KEPT(dtype)                                                                                           \
  if (kernel == "lpq_cache_append_" #dtype) run(lpq_cache_append_##dtype, grid, {threads, 1}, arguments);         \
  if (kernel == "lpq_rope_append_" #dtype) run(lpq_rope_append_##dtype, grid, {threads, 1}, arguments);           \
  if (kernel == "lpq_rope_append_wide_" #dtype) run(lpq_rope_append_wide_##dtype, grid, {threads, 1}, arguments); \
  if (kernel == "lpq_cached_attention_plain_" #dtype)                                                             \
    run(lpq_cached_attention_plain_##dtype, grid, {threads, 8}, arguments);
  LPQ_KEPT(f32)
  LPQ_KEPT(f16)
  LPQ_KEPT(bf16)
#define LPQ_SUMMED(y, x) \
  if (kernel == "lpq_add_norm_" #y "_" #x) run(lpq_add_norm_##y##_##x, grid, {threads, 1}, arguments, shared);
  LPQ_SUMMED(f32, f32)
  LPQ_SUMMED(f32, bf16)
  LPQ_SUMMED(f16, f16);
  LPQ_SUMMED(bf16, bf16);
  if (kernel == "lpq_cached_attention_f16_64") tensor_cores(lpq_cached_attention_f16_64);
  if (kernel == "lpq_cached_attention_f16_128") tensor_cores(lpq_cached_attention_f16_128);
  if (kernel == "lpq_cached_attention_bf16_128") tensor_cores(lpq_cached_attention_bf16_128);
}
