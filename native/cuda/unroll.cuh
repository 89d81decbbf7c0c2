// Loops whose index is a constant of each pass.
#pragma once

namespace lpq::cuda {

template <int N>
struct Constant {
  static constexpr int value = N;
};
// what(Constant<I>()) for I from From to To - 1.
template <int From, int To, class What>
__device__ __forceinline__ void each(const What& what) {
  if constexpr (From < To) {
    what(Constant<From>());
    each<From + 1, To>(what);
  }
}

}  // namespace lpq::cuda
