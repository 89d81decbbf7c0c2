#include "ops/reshape.h"
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

void slice_columns(Call& call, CudaExec& exec) {
  const auto [x, y, from_column] = ops::SomeColumns::parse_slice(call);
  const long long rows = x.dim(0), columns = x.dim(1), width = y.dim(1), first = from_column;
  if (y.elements() == 0) return;
  const void* from = x.raw();
  void* to = y.raw();
  exec.launch("lpq_slice_columns_" + std::to_string(dtype_bytes(x.dtype)), {stride_blocks(exec, rows * width, 256)},
              {256}, 0, from, to, rows, columns, width, first);
}

void place_columns(Call& call, CudaExec& exec) {
  const auto [x, y, first] = ops::SomeColumns::parse_place(call);
  const long long rows = x.dim(0), width = x.dim(1), columns = y.dim(1);
  if (x.elements() == 0) return;
  const long long size = static_cast<long long>(dtype_bytes(x.dtype));
  std::byte* target = y.raw() + first * size;
  if (rows == 1 || width == columns) return exec.copy(target, x.raw(), x.bytes());
  // In words as wide as both sides have them.
  long long word = 8;
  while (word > size && (reinterpret_cast<uintptr_t>(x.raw()) % word || reinterpret_cast<uintptr_t>(target) % word ||
                         width * size % word || columns * size % word))
    word /= 2;
  const long long across = width * size / word, apart = columns * size / word;
  const void* from = x.raw();
  void* to = target;
  exec.launch("lpq_place_columns_" + std::to_string(word), {stride_blocks(exec, rows * across, 256)}, {256}, 0, from,
              to, rows, apart, across);
}

void transpose(Call& call, CudaExec& exec) {
  const auto [x, y] = ops::Transpose::parse(call);
  const long long rows = x.dim(0), columns = x.dim(1);
  if (x.elements() == 0) return;
  const void* from = x.raw();
  void* to = y.raw();
  exec.launch("lpq_transpose_" + std::to_string(dtype_bytes(x.dtype)), {div_up(rows, 32) * div_up(columns, 32)},
              Dim3(32, 8), 0, from, to, rows, columns);
}

}  // namespace
LPQ_CUDA_OP(slice_columns, "slice_columns");
LPQ_CUDA_OP(place_columns, "place_columns");
LPQ_CUDA_OP(transpose, "transpose");
}  // namespace lpq::cuda
