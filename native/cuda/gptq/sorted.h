// Columns in order of their scale group, for kernels that work group by group: a group's columns (in solving order) lie
// side by side, cut into pieces of 16, 32, 64 or 128 columns that zeros fill up. Tensor cores then always see whole
// tiles.
#pragma once
#include "cuda/gptq/problem.h"

namespace lpq::cuda::gptq {

struct Sorted {
  int64_t piece = 16;  // columns of a piece
  int64_t pieces_per_group = 1;
  int64_t columns = 0;  // all pieces, padded to whole tiles of 128
  Scratch members;      // I32 [columns]: column of the original, or -1

  // Groups may hold at most ceil(K/G) columns; more fail the next wait.
  Sorted(CudaExec& exec, const int32_t* group, int64_t k, int64_t groups) : members(exec.scratch(room(k, groups) * 4)) {
    const int64_t most = (k + groups - 1) / groups;
    while (piece < most && piece < 128) piece *= 2;
    pieces_per_group = (most + piece - 1) / piece;
    columns = static_cast<int64_t>(room(k, groups));
    exec.launch("lpq_gptq_members", Dim3((columns + pieces_per_group * piece - 1) / (pieces_per_group * piece)),
                Dim3(32), 0, group, static_cast<int>(k), static_cast<int>(groups),
                static_cast<int>(pieces_per_group * piece), static_cast<int>(most), static_cast<int>(columns),
                members.as<int32_t>(),
                exec.fault("LPQ_NATIVE_ARGUMENT", "a scale group holds more columns than the others"));
  }
  int64_t pieces() const { return columns / piece; }

 private:
  static size_t room(int64_t k, int64_t groups) {
    const int64_t most = (k + groups - 1) / groups;
    int64_t piece = 16;
    while (piece < most && piece < 128) piece *= 2;
    return static_cast<size_t>((groups * ((most + piece - 1) / piece) * piece + 127) / 128 * 128);
  }
};

}  // namespace lpq::cuda::gptq
