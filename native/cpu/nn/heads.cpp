// Columns moved between the heads of two matrices, and a strided matrix out of a larger tensor. Any element type.
#include <algorithm>
#include <cstring>
#include <string>

#include "cpu/checks.h"
#include "ops/reshape.h"

namespace lpq::nn {
namespace {

constexpr int64_t kTile = 32;  // rows and columns a tile: its lines of both sides stay in the first cache

void copy_heads(Call& call, Exec& exec) {
  const ops::CopyHeads a(call);
  const int64_t heads = a.heads, width = a.width;
  const size_t size = dtype_bytes(a.x.dtype), bytes = static_cast<size_t>(width) * size;
  const std::byte* source = a.x.raw();
  std::byte* target = a.y.raw();
  exec.pool.for_each(a.x.dim(0), rows_grain(heads * width), [&](int64_t t) {
    for (int64_t h = 0; h < heads; ++h)
      std::memcpy(target + static_cast<size_t>((t * heads + h) * a.to_dim + a.to) * size,
                  source + static_cast<size_t>((a.shared ? t : t * heads + h) * a.from_dim + a.from) * size, bytes);
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
  const ops::StridedMatrix a(call);
  const int64_t rows = a.y.dim(0), columns = a.y.dim(1);
  if (a.y.elements() == 0) return;
  const size_t size = dtype_bytes(a.x.dtype);
  const std::byte* source = a.x.raw() + static_cast<size_t>(a.first) * size;
  std::byte* target = a.y.raw();
  if (size == 1) strided<uint8_t>(source, target, rows, columns, a.row_step, a.column_step, exec.pool);
  else if (size == 2) strided<uint16_t>(source, target, rows, columns, a.row_step, a.column_step, exec.pool);
  else if (size == 4) strided<uint32_t>(source, target, rows, columns, a.row_step, a.column_step, exec.pool);
  else strided<uint64_t>(source, target, rows, columns, a.row_step, a.column_step, exec.pool);
}

}  // namespace
LPQ_OP(copy_heads, "copy_heads");
LPQ_OP(strided_matrix, "strided_matrix");
}  // namespace lpq::nn
