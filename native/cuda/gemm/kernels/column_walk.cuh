// A block's walk down columns of tiles, a step along K after the other, and on into the next column.
#pragma once

namespace lpq::cuda {

// Columns are `strips` of W, of `steps` each, counted once for each batch of tokens, as if W were repeated.
struct ColumnWalk {
  int column, step, batch = 0, strip;

  __device__ __forceinline__ ColumnWalk(int at, int strips, int steps)
      : column(at / steps), step(at - column * steps), strip(column) {
    wrap(strips);
  }
  // The batch and the strip of a column, without dividing.
  __device__ __forceinline__ void wrap(int strips) {
    while (strip >= strips) strip -= strips, ++batch;
  }
  // A step further; before what comes next, next_column() where this is true.
  __device__ __forceinline__ bool column_ends(int steps) { return ++step == steps; }
  __device__ __forceinline__ void next_column(int strips) {
    step = 0, ++column, ++strip;
    wrap(strips);
  }
};

}  // namespace lpq::cuda
