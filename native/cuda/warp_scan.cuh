// Sums over the lanes before a lane.
#pragma once

namespace lpq::cuda {

// Of the whole numbers of lower lanes.
__device__ __forceinline__ int warp_before(int own, int lane) {
  int sum = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int lower = __shfl_sync(0xffffffffu, sum, max(lane - step, 0));
    sum += lane >= step ? lower : 0;
  }
  return sum - own;
}

// Run `lane` of 32 of `count` things: the whole part that a lane takes.
struct LaneRun {
  int from, to;
  __device__ __forceinline__ LaneRun(int count, int lane) {
    const int run = (count + 31) / 32;
    from = min(lane * run, count), to = min(from + run, count);
  }
};

}  // namespace lpq::cuda
