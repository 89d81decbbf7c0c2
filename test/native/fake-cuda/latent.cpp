// The kernels of latent attention's cache, and of products of every head's own, run by the host for the fake driver:
// what the operations launch, with the arguments that they launch it with.
#include <mutex>
#include <string>

#include "asynchronous.h"
#include "cuda/attention/latent.cu"
#include "cuda/linalg/head_linear.cu"

extern "C" __attribute__((visibility("default"))) void fake_kernel(const char* name, unsigned grid, unsigned threads,
                                                                   unsigned shared, void** arguments) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  const std::string kernel = name;
  simt::begin(1);
  const auto run = [&]<class Args>(void (*function)(Args)) {
    const auto& a = *static_cast<std::remove_const_t<Args>*>(arguments[0]);
    simt::run(static_cast<int>(grid), static_cast<int>(threads), 1, static_cast<int>(shared), 1, [&] { function(a); });
  };
#define LPQ_RUN(of) \
  if (kernel == #of) run(of);
  LPQ_RUN(lpq_latent_decode_few)
  LPQ_RUN(lpq_latent_join_few)
  LPQ_RUN(lpq_latent_decode_many)
  LPQ_RUN(lpq_latent_join_many)
  LPQ_RUN(lpq_latent_decode_small)
  LPQ_RUN(lpq_latent_join_small)
  LPQ_RUN(lpq_latent_pack_2)
  LPQ_RUN(lpq_latent_pack_4)
  LPQ_RUN(lpq_latent_pack_8)
  LPQ_RUN(lpq_latent_pack_16)
  LPQ_RUN(lpq_head_linear_f32)
  LPQ_RUN(lpq_head_linear_f16)
  LPQ_RUN(lpq_head_linear_bf16)
}
