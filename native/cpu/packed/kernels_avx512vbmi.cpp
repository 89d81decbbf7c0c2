// kernels_avx512.cpp where there is VBMI, too.
#define LPQ_VBMI 1
#include "cpu/packed/kernels_avx512.cpp"
