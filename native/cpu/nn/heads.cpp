// Columns moved between the heads of two matrices, and a strided matrix out of a larger tensor. Any element type.
#include <algorithm>
#include <cstring>
#include <string>

#include "cpu/checks.h"

namespace lpq::nn {
namespace {

constexpr int64_t kTile = 32;  // rows and columns a tile: its lines of both sides stay in the first cache

void copy_heads(Call& call, Exec& exec) {
  const Tensor &x = call.input(0), &y = call.output(0);
  const int64_t heads = call.params.integer("heads"), width = call.params.integer("width");
  const int64_t from_dim = call.params.integer("fromDim"), from = call.params.integer("from");
  const int64_t to_dim = call.params.integer("toDim"), to = call.params.integer("to");
  const bool shared = call.params.number("shared", 0) != 0;  // one head of x for all of y
  require(heads > 0 && width >= 0, "heads is " + std::to_string(heads) + " and width " + std::to_string(width));
  require(from >= 0 && from + width <= from_dim, "columns " + std::to_string(from) + " to " +
                                                     std::to_string(from + width) + " are not in a head of " +
                                                     std::to_string(from_dim));
  require(to >= 0 && to + width <= to_dim, "columns " + std::to_string(to) + " to " + std::to_string(to + width) +
                                               " are not in a head of " + std::to_string(to_dim));
  require_shape(x, "x", {-1, (shared ? 1 : heads) * from_dim});
  require_shape(y, "y", {x.dim(0), heads * to_dim});
  require(x.dtype == y.dtype, "y has another dtype than x");
  const size_t size = dtype_bytes(x.dtype), bytes = static_cast<size_t>(width) * size;
  const std::byte* source = x.raw();
  std::byte* target = y.raw();
  exec.pool.parallel_for(x.dim(0), rows_grain(heads * width), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t h = 0; h < heads; ++h)
        std::memcpy(target + static_cast<size_t>((t * heads + h) * to_dim + to) * size,
                    source + static_cast<size_t>((shared ? t : t * heads + h) * from_dim + from) * size, bytes);
  });
}

template <class T>
void strided(const std::byte* source, std::byte* target, int64_t rows, int64_t columns, int64_t row_step,
             int64_t column_step, ThreadPool& pool) {
  pool.parallel_for(
      (rows + kTile - 1) / kTile, std::max<int64_t>(1, (1 << 15) / (kTile * std::max<int64_t>(columns, 1))),
      [&](int64_t begin, int64_t end, int) {
        for (int64_t tile = begin; tile < end; ++tile)
          for (int64_t c = 0; c < columns; c += kTile)
            for (int64_t n = tile * kTile; n < std::min(rows, (tile + 1) * kTile); ++n)
              for (int64_t k = c; k < std::min(columns, c + kTile); ++k)  // memcpy: files may be unaligned
                std::memcpy(target + (n * columns + k) * static_cast<int64_t>(sizeof(T)),
                            source + (n * row_step + k * column_step) * static_cast<int64_t>(sizeof(T)), sizeof(T));
      });
}

void strided_matrix(Call& call, Exec& exec) {
  const Tensor &x = call.input(0), &y = call.output(0);
  require_shape(y, "y", {-1, -1});
  require(x.dtype == y.dtype, "y has another dtype than x");
  const int64_t rows = y.dim(0), columns = y.dim(1), first = call.params.integer("first");
  const int64_t row_step = call.params.integer("rowStep"), column_step = call.params.integer("columnStep");
  require(first >= 0 && row_step >= 0 && column_step >= 0, "first, rowStep and columnStep must not be negative");
  if (y.elements() == 0) return;
  require(first + (rows - 1) * row_step + (columns - 1) * column_step < x.elements(),
          "the last element lies outside x of " + std::to_string(x.elements()) + " elements");
  const size_t size = dtype_bytes(x.dtype);
  const std::byte* source = x.raw() + static_cast<size_t>(first) * size;
  std::byte* target = y.raw();
  if (size == 1) strided<uint8_t>(source, target, rows, columns, row_step, column_step, exec.pool);
  else if (size == 2) strided<uint16_t>(source, target, rows, columns, row_step, column_step, exec.pool);
  else if (size == 4) strided<uint32_t>(source, target, rows, columns, row_step, column_step, exec.pool);
  else strided<uint64_t>(source, target, rows, columns, row_step, column_step, exec.pool);
}

}  // namespace
LPQ_OP(copy_heads, "copy_heads");
LPQ_OP(strided_matrix, "strided_matrix");
}  // namespace lpq::nn
