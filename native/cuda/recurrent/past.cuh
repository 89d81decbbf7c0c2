// Sequences of a call with a past (ops/recurrent.h, Recurrence), as kernels see them.
#pragma once
#include <cstdint>

namespace lpq::cuda {

// Null slots: all sequences begin in the call.
struct Past {
  const int *starts, *slots, *totals;
  float* state;
  int sequences, tokens, slot_count;
  unsigned* fault;
};

// New tokens first .. first + count of a sequence, `earlier` ones before them, kept in `slot` (-1: nothing is kept).
struct Run {
  int first, count, earlier, slot;
};

// Sequence s; of one that is none, which is a fault, no tokens.
__device__ __forceinline__ Run run_of(const Past& past, int s) {
  const int begin = past.starts[s], end = past.starts[s + 1];
  Run run{begin, end - begin, 0, -1};
  bool bad = begin < 0 || end < begin || end > past.tokens || (s == 0 && begin != 0) ||
             (s + 1 == past.sequences && end != past.tokens);
  if (past.slots) {
    run.slot = past.slots[s], run.earlier = past.totals[s] - run.count;
    bad |= run.slot < 0 || run.slot >= past.slot_count || run.earlier < 0;
  }
  if (!bad) return run;
  *past.fault = 1;
  return {0, 0, 0, -1};
}

// For one block a sequence: sequences of one slot are a fault.
__device__ __forceinline__ void check_slot(const Past& past, int s) {
  if (!past.slots) return;
  for (int other = static_cast<int>(threadIdx.x); other < s; other += static_cast<int>(blockDim.x))
    if (past.slots[other] == past.slots[s]) *past.fault = 1;
}

// For one block of a call: every sequence is one.
__device__ __forceinline__ void check_runs(const Past& past) {
  for (int s = static_cast<int>(threadIdx.x); s < past.sequences; s += static_cast<int>(blockDim.x)) run_of(past, s);
}

// The sequence of token t.
__device__ __forceinline__ int sequence_of(const int* starts, int sequences, int t) {
  int low = 0, high = sequences;
  while (low + 1 < high) {
    const int middle = (low + high) / 2;
    if (starts[middle] <= t) low = middle;
    else high = middle;
  }
  return low;
}

}  // namespace lpq::cuda
