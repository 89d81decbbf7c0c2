// Arguments of rounded inputs (round_inputs.cu), shared with the host.
#pragma once
#include "cuda/quant/rtn.h"

namespace lpq::cuda {

struct RoundInputsArgs {
  RtnArgs rule;  // what choose() reads: grid, scale_type, levels, least_scale, top, top_power, has_global
  const float* x;
  float* y;
  int64_t groups;
  int length;
  int team;  // lanes of a group, a power of two, each with four neighbours; 0: a warp, which reads the group twice
  float global;
  uint32_t* fault;
};

}  // namespace lpq::cuda
