// Elements moved, not computed with: columns out of a fused projection, columns beside one another, a matrix turned
// over. Any element type.
#include <algorithm>
#include <cstring>
#include <string>

#include "cpu/checks.h"
#include "ops/reshape.h"

namespace lpq::nn {
namespace {

constexpr int64_t kTile = 32;  // elements a side: both sides of a tile stay in the first cache

void slice_columns(Call& call, Exec& exec) {
  const ops::SomeColumns op(call, false);
  const int64_t rows = op.x.dim(0), columns = op.x.dim(1), width = op.y.dim(1);
  const size_t size = dtype_bytes(op.x.dtype), bytes = static_cast<size_t>(width) * size;
  const std::byte* from = op.x.raw() + static_cast<size_t>(op.first) * size;
  std::byte* to = op.y.raw();
  const size_t stride = static_cast<size_t>(columns) * size;
  exec.pool.for_each(rows, rows_grain(width), [&](int64_t t) {
    std::memcpy(to + static_cast<size_t>(t) * bytes, from + static_cast<size_t>(t) * stride, bytes);
  });
}

void place_columns(Call& call, Exec& exec) {
  const ops::SomeColumns op(call, true);
  const int64_t rows = op.x.dim(0), width = op.x.dim(1), columns = op.y.dim(1);
  const size_t size = dtype_bytes(op.x.dtype), bytes = static_cast<size_t>(width) * size,
               stride = static_cast<size_t>(columns) * size;
  const std::byte* from = op.x.raw();
  std::byte* to = op.y.raw() + static_cast<size_t>(op.first) * size;
  exec.pool.for_each(rows, rows_grain(width), [&](int64_t t) {
    std::memcpy(to + static_cast<size_t>(t) * stride, from + static_cast<size_t>(t) * bytes, bytes);
  });
}

template <int Size>
void turn(const std::byte* from, std::byte* to, int64_t rows, int64_t columns, int64_t begin, int64_t end) {
  for (int64_t r = 0; r < rows; r += kTile)
    for (int64_t c = begin; c < end; ++c)
      for (int64_t i = r; i < std::min(rows, r + kTile); ++i)
        std::memcpy(to + (c * rows + i) * Size, from + (i * columns + c) * Size, Size);
}

void transpose(Call& call, Exec& exec) {
  const ops::Transpose op(call);
  const int64_t rows = op.x.dim(0), columns = op.x.dim(1);
  const size_t size = dtype_bytes(op.x.dtype);
  const std::byte* from = op.x.raw();
  std::byte* to = op.y.raw();
  exec.pool.parallel_for((columns + kTile - 1) / kTile, 1, [&](int64_t begin, int64_t end, int) {
    const int64_t first = begin * kTile, last = std::min(columns, end * kTile);
    if (size == 1) turn<1>(from, to, rows, columns, first, last);
    else if (size == 2) turn<2>(from, to, rows, columns, first, last);
    else if (size == 4) turn<4>(from, to, rows, columns, first, last);
    else turn<8>(from, to, rows, columns, first, last);
  });
}

}  // namespace
LPQ_OP(slice_columns, "slice_columns");
LPQ_OP(place_columns, "place_columns");
LPQ_OP(transpose, "transpose");
}  // namespace lpq::nn
