// Shapes of the streaming kernel to choose from by measuring (bench_kernels --set stream-tune): u4 and i4 times f16.
#include "cuda/kernels/gemm_packed.cuh"

#define LPQ_GEMM_STREAM_TUNE(tiles)                                 \
  LPQ_GEMM_STREAM_T(int4_f16, tiles, 8, 2, 0, 4, false, IntCast)    \
  LPQ_GEMM_STREAM_T(int4_f16, tiles, 8, 2, 1, 4, false, IntCast)    \
  LPQ_GEMM_STREAM_T(int4_f16, tiles, 8, 2, 2, 4, false, IntCast)    \
  LPQ_GEMM_STREAM_T(int4_f16, tiles, 16, 1, 1, 4, false, IntCast)
LPQ_GEMM_STREAM_TUNE(1)
LPQ_GEMM_STREAM_T(int4_f16, 1, 16, 1, 2, 4, false, IntCast)
LPQ_GEMM_STREAM_TUNE(2)
LPQ_GEMM_STREAM_T(int4_f16, 2, 16, 1, 2, 4, false, IntCast)
LPQ_GEMM_STREAM_T(int4_f16, 4, 8, 1, 1, 4, false, IntCast)
LPQ_GEMM_STREAM_T(int4_f16, 4, 8, 1, 2, 4, false, IntCast)
LPQ_GEMM_STREAM_T(int4_f16, 4, 16, 1, 0, 4, false, IntCast)
LPQ_GEMM_STREAM_T(int4_f16, 4, 16, 1, 1, 4, false, IntCast)
// Without a kernel the file could not be built for other devices.
extern "C" __global__ void lpq_gemm_stream_variants(unsigned* count) { *count = 14; }
