// The simulated device can do all.
#pragma once
#define LPQ_HAS_WGMMA 1
#define LPQ_HAS_TMA 1
#define LPQ_PORTABLE_RUNS 1
