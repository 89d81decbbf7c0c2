// slice_columns, place_columns, transpose. Contracts: native/ops.ts.
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

void slice_columns(Call& call, CudaExec& exec) {
  const Tensor &x = call.input(0), &y = call.output(0);
  require_shape(x, "x", {-1, -1});
  const long long rows = x.dim(0), columns = x.dim(1), first = call.params.integer("first");
  require_shape(y, "y", {rows, -1});
  require(y.dtype == x.dtype, "y has another dtype than x");
  const long long width = y.dim(1);
  require(first >= 0 && first + width <= columns, "columns " + std::to_string(first) + " to " +
                                                      std::to_string(first + width) + " are not among the " +
                                                      std::to_string(columns) + " of x");
  if (y.elements() == 0) return;
  const void* from = x.raw();
  void* to = y.raw();
  exec.launch("lpq_slice_columns_" + std::to_string(dtype_bytes(x.dtype)), {stride_blocks(exec, rows * width, 256)},
              {256}, 0, from, to, rows, columns, width, first);
}

void place_columns(Call& call, CudaExec& exec) {
  const Tensor &x = call.input(0), &y = call.output(0);
  require_shape(x, "x", {-1, -1});
  const long long rows = x.dim(0), width = x.dim(1), first = call.params.integer("first");
  require_shape(y, "y", {rows, -1});
  require(y.dtype == x.dtype, "y has another dtype than x");
  const long long columns = y.dim(1);
  require(first >= 0 && first + width <= columns, "columns " + std::to_string(first) + " to " +
                                                      std::to_string(first + width) + " are not among the " +
                                                      std::to_string(columns) + " of y");
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
  const Tensor &x = call.input(0), &y = call.output(0);
  require_shape(x, "x", {-1, -1});
  const long long rows = x.dim(0), columns = x.dim(1);
  require_shape(y, "y", {columns, rows});
  require(y.dtype == x.dtype, "y has another dtype than x");
  if (x.elements() == 0) return;
  require(x.raw() != y.raw(), "y must not be x");
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
