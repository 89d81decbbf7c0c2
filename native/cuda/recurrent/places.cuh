// Sequences with what was made of their tokens: one entry of `rate` tokens.
#pragma once
#include "cuda/recurrent/past.cuh"

namespace lpq::cuda {

// As Run, and the first of the entries that end in the sequence's new tokens among those of all sequences.
struct Place {
  int first, count, earlier, slot, entry;
  __device__ int total() const { return earlier + count; }
  // Entries before the new tokens, and with them.
  __device__ int before(int rate) const { return earlier / rate; }
  __device__ int after(int rate) const { return total() / rate; }
};

// The place of new token t.
__device__ __forceinline__ const Place& place_of(const Place* places, int sequences, int t) {
  int low = 0, high = sequences;
  while (low + 1 < high) {
    const int middle = (low + high) / 2;
    if (places[middle].first <= t) low = middle;
    else high = middle;
  }
  return places[low];
}

}  // namespace lpq::cuda
