// simulate_kv (simulate_kv.cuh).
#include "cuda/attention/simulate_kv.cuh"

#define LPQ_SIMULATE(T, name)                                                                                          \
  extern "C" __global__ void __launch_bounds__(128)                                                                    \
      lpq_simulate_kv_##name(const T* x, const int32_t* starts, T* y, int sequences, int tokens, int width, int group, \
                             float top, int clip, uint32_t* fault) {                                                   \
    lpq::cuda::simulate_kv<T>(x, starts, y, sequences, tokens, width, group, top, clip, static_cast<int>(blockIdx.y),  \
                              fault);                                                                                  \
  }
LPQ_EACH_TYPE(LPQ_SIMULATE)
