// What operations with a state a sequence have in common: which tokens are a sequence's, and where its state lies.
#pragma once
#include <vector>

#include "cpu/checks.h"
#include "cpu/nn/cast.h"
#include "cpu/nn/vector.h"
#include "ops/recurrent.h"

namespace lpq::nn {

// Tokens first .. first + count of a sequence. `state`: its slot, null where none is kept; `fresh`: it begins at zero.
struct Run {
  int64_t first, count;
  float* state;
  bool fresh;
};

inline std::vector<Run> runs(const ops::Recurrence& past, int64_t tokens) {
  const int64_t sequences = past.starts.dim(0) - 1;
  const int32_t* start = past.starts.data<int32_t>();
  require(start[0] == 0 && start[sequences] == tokens,
          "starts does not run from 0 to the number of tokens, " + std::to_string(tokens));
  const int64_t slots = past.state ? past.state->dim(0) : 0;
  const int64_t size = slots > 0 ? past.state->elements() / slots : 0;
  std::vector<bool> taken(static_cast<size_t>(slots));
  std::vector<Run> found;
  for (int64_t s = 0; s < sequences; ++s) {
    const std::string name = "sequence " + std::to_string(s);
    const int64_t count = start[s + 1] - start[s];
    require(count >= 0, "starts falls after " + name);
    Run run{start[s], count, nullptr, true};
    if (past.state) {
      const int64_t slot = past.slots->data<int32_t>()[s], total = past.totals->data<int32_t>()[s];
      require(slot >= 0 && slot < slots, name + " has slot " + std::to_string(slot) + " of " + std::to_string(slots));
      require(!taken[static_cast<size_t>(slot)], name + " has the slot of another");
      taken[static_cast<size_t>(slot)] = true;
      require(total >= count, name + " has length " + std::to_string(total) + ", less than its new tokens");
      run.state = past.state->data<float>() + slot * size;
      run.fresh = total == count;
    }
    found.push_back(run);
  }
  return found;
}

// Takes every sequence's state of `heads` matrices [rows, width] through its tokens: token(t, head, first, columns, s)
// changes columns first .. first + columns, s [rows, kStateColumns], of one head at token t. Columns of a state do not
// see each other: a few of one head are a task, and lie in a cache of their own.
template <class Token>
void over_states(Exec& exec, const std::vector<Run>& all, int64_t heads, int64_t rows, int64_t width, Token token) {
  const int64_t parts = (width + kStateColumns - 1) / kStateColumns;
  exec.pool.for_each(static_cast<int64_t>(all.size()) * heads * parts, 1, [&](int64_t task) {
    const Run& run = all[static_cast<size_t>(task / (heads * parts))];
    const int64_t head = task / parts % heads, first = task % parts * kStateColumns;
    const int64_t columns = std::min<int64_t>(kStateColumns, width - first);
    if (run.count == 0) return;
    std::vector<float> state(static_cast<size_t>(rows * kStateColumns), 0.0f);
    float* kept = run.state ? run.state + head * rows * width + first : nullptr;
    if (!run.fresh)
      for (int64_t r = 0; r < rows; ++r)
        std::copy(kept + r * width, kept + r * width + columns,
                  state.begin() + static_cast<ptrdiff_t>(r * kStateColumns));
    for (int64_t t = run.first; t < run.first + run.count; ++t) token(t, head, first, columns, state.data());
    if (!kept) return;
    for (int64_t r = 0; r < rows; ++r)
      std::copy_n(state.begin() + static_cast<ptrdiff_t>(r * kStateColumns), columns, kept + r * width);
  });
}

inline double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// All of a small tensor in f32.
inline std::vector<float> widened(const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  if (!values.empty()) widen(tensor, 0, tensor.elements(), values.data());
  return values;
}

}  // namespace lpq::nn
