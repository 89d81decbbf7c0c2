// Arguments of the refit's last kernel (refit.cu), shared with the host.
#pragma once
#include <cstdint>

namespace lpq::cuda {

struct RefitArgs {
  int row0, rows;  // rows of this launch: row0 .. row0 + rows
  int groups, pieces_per_group, piece;
  int columns;            // sorted
  const uint16_t* codes;  // [n, columns] f16, (level - zero) in scaled units
  const float* gradient;  // [n, columns] (What - T) M in scaled units
  const float* products;  // [rows][pairs]: v_a M v_b of pieces a >= b in scaled units, pair a (a + 1) / 2 + b
  int64_t pairs;
  const int32_t* row_exponent;   // [n] of the errors
  const int32_t* code_exponent;  // [n] of the codes
  float* scale;                  // [n, groups]
  float* room;                   // [blocks][groups (groups + 1) / 2], when shared memory is too small; else null
  unsigned long long* refitted;
  // Of two-level scales, else null: the solution [n, groups], which stays 0 where a row has no usable one, and r =
  // -v (What - T) M; `scale` is left alone.
  float *solution, *residual;
};

}  // namespace lpq::cuda
