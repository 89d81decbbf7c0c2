// Past (past.cuh) of an operation's arguments.
#pragma once
#include <string>

#include "cuda/launch.h"
#include "ops/recurrent.h"

namespace lpq::cuda {

// As in past.cuh.
struct Past {
  const int32_t *starts, *slots, *totals;
  float* state;
  int sequences, tokens, slot_count;
  uint32_t* fault;
};

inline Past past_of(CudaExec& exec, const ops::Recurrence& r, int64_t tokens) {
  Past past{};
  past.starts = r.starts.data<int32_t>();
  past.sequences = static_cast<int>(r.starts.dim(0)) - 1, past.tokens = static_cast<int>(tokens);
  past.fault = exec.fault("LPQ_NATIVE_ARGUMENT", "starts does not rise from 0 to " + std::to_string(tokens) +
                                                     ", or slots or totals are wrong");
  if (!r.state) return past;
  past.slots = r.slots->data<int32_t>(), past.totals = r.totals->data<int32_t>();
  past.state = r.state->data<float>(), past.slot_count = static_cast<int>(r.state->dim(0));
  return past;
}

}  // namespace lpq::cuda
