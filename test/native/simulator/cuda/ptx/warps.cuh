// native/cuda/ptx/warps.cuh, simulated.
#pragma once
#include "asynchronous.h"

namespace lpq::cuda {

inline simt::Named& named_barrier(int id) {
  return simt::asynchronous.named[blockIdx.x * 16 + static_cast<unsigned>(id)];
}
inline void bar_arrive(int id, int threads) {
  simt::Named& b = named_barrier(id);
  if (++b.arrived == threads) b.arrived = 0, ++b.generation;
}
inline void bar_sync(int id, int threads) {
  simt::Named& b = named_barrier(id);
  const int generation = b.generation;
  bar_arrive(id, threads);
  while (b.generation == generation) simt::poll();
}
template <int N>
void setmaxnreg_inc() {}
template <int N>
void setmaxnreg_dec() {}
template <class T>
void keep_here(T&) {}

}  // namespace lpq::cuda
