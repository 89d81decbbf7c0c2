// The kernels of experts without wgmma (native/cuda/gemm/kernels/experts.cuh) run by the host for the fake driver: what
// gemm_experts launches, with the arguments that it launches it with.
#include <mutex>
#include <string>

#include "asynchronous.h"
#include "cuda/gemm/kernels/experts.cuh"

#define LPQ_WEIGHTS_BF16 false
LPQ_EXPERTS(int4_f16, 2, 512, 4, false, IntCast)
LPQ_EXPERTS(int4_f16, 8, 256, 4, false, IntCast)
#undef LPQ_WEIGHTS_BF16
#define LPQ_WEIGHTS_BF16 true
LPQ_EXPERTS(float6_bf16, 2, 512, 6, true, FloatCast)

extern "C" __attribute__((visibility("default"))) void fake_kernel(const char* name, unsigned grid, unsigned threads,
                                                                   unsigned shared, void** arguments) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  const std::string kernel = name;
  const auto launch = [&](auto function) {
    simt::begin(1);
    gridDim.x = grid;
    simt::run(static_cast<int>(grid), static_cast<int>(threads), static_cast<int>(grid), static_cast<int>(shared), 1,
              [&] {
                blockDim.x = threads;
                function(*static_cast<lpq::cuda::GemmPackedArgs*>(arguments[0]),
                         *static_cast<lpq::cuda::ExpertArgs*>(arguments[1]));
              });
  };
  if (kernel == "lpq_experts_int4_f16_t2") launch(lpq_experts_int4_f16_t2);
  if (kernel == "lpq_experts_int4_f16_t8") launch(lpq_experts_int4_f16_t8);
  if (kernel == "lpq_experts_float6_bf16_t2") launch(lpq_experts_float6_bf16_t2);
}
