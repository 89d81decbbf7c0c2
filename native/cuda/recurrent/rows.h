// Rows of states (columns.cuh), rows that are fetched in fours, and what the gated delta rule makes its factors of,
// and the selective scan its d.
#pragma once
#include <initializer_list>
#include <string>

#include "cuda/launch.h"

namespace lpq::cuda {

// Rows of a thread, of which there are kernels.
inline int rows_of_thread(int64_t rows, int least) {
  int each = least;
  while (8 * each < rows) each *= 2;
  require(each <= 32, "states of " + std::to_string(rows) + " rows: on CUDA they have 256 at most");
  return each;
}

// Rows of such widths lie at multiples of sixteen bytes.
inline bool rows_in_fours(std::initializer_list<const void*> tensors, std::initializer_list<int64_t> widths) {
  for (const void* each : tensors)
    if (reinterpret_cast<uintptr_t>(each) % 16 != 0) return false;
  for (const int64_t each : widths)
    if (each % 4 != 0) return false;
  return true;
}

// As in gated_delta.cu.
struct DeltaGiven {
  const float *q, *k, *decay, *beta;
  const void *rate, *bias;
  int rate_type, bias_type;
  float strength;
  // `a`: GatedDelta or GatedDeltaBackward.
  template <class Arguments>
  explicit DeltaGiven(const Arguments& a)
      : q(a.q.template data<float>()),
        k(a.k.template data<float>()),
        decay(a.decay.template data<float>()),
        beta(a.beta.template data<float>()),
        rate(a.rate.raw()),
        bias(a.bias.raw()),
        rate_type(type_index(a.rate.dtype)),
        bias_type(type_index(a.bias.dtype)),
        strength(static_cast<float>(a.strength)) {}
};

// As in selective_scan.cu.
struct ScanGiven {
  const float* step;
  const void* bias;
  int bias_type, width;
  float least, most;
  // `a`: SelectiveScan or SelectiveScanBackward.
  template <class Arguments>
  explicit ScanGiven(const Arguments& a)
      : step(a.step.template data<float>()),
        bias(a.bias.raw()),
        bias_type(type_index(a.bias.dtype)),
        width(static_cast<int>(a.step.dim(1))),
        least(static_cast<float>(a.least)),
        most(static_cast<float>(a.most)) {}
};

}  // namespace lpq::cuda
