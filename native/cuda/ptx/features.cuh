// What the device that code is compiled for can do. The host's compiler, which plays kernels (test/native/simulator),
// can do all.
#pragma once

// wgmma, setmaxnreg, and with them the kernels of sm_90a alone.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LPQ_HAS_WGMMA 1
#else
#define LPQ_HAS_WGMMA 0
#endif
// TMA, mbarrier's transaction counts, clusters, griddepcontrol, stmatrix.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define LPQ_HAS_TMA 1
#else
#define LPQ_HAS_TMA 0
#endif
// Compiled for sm_90a alone, the portable kernels that wgmma's replace would never run.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LPQ_PORTABLE_RUNS 0
#else
#define LPQ_PORTABLE_RUNS 1
#endif
