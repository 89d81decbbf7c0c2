// channel_statistics and block_errors (search.cuh).
#include "cuda/quant/search.cuh"

#define LPQ_STATISTICS(T, name)                                                                                       \
  extern "C" __global__ void __launch_bounds__(128)                                                                   \
      lpq_channel_statistics_##name(const T* x, float* most, double* moments, int64_t rows, int k, uint32_t* fault) { \
    lpq::cuda::channel_statistics<T>(x, most, moments, rows, k, fault);                                               \
  }
LPQ_EACH_TYPE(LPQ_STATISTICS)

extern "C" __global__ void __launch_bounds__(lpq::cuda::kSearchThreads) lpq_block_errors(lpq::cuda::BlockErrorsArgs a) {
  lpq::cuda::block_errors(a);
}
