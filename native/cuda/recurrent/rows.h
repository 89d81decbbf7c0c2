// Rows of states (columns.cuh), and rows that are fetched in fours.
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

}  // namespace lpq::cuda
