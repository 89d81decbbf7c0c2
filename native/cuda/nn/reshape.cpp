#include "ops/reshape.h"
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

void slice_columns(Call& call, CudaExec& exec) {
  const ops::SomeColumns op(call, false);
  const long long rows = op.x.dim(0), columns = op.x.dim(1), width = op.y.dim(1), first = op.first;
  if (op.y.elements() == 0) return;
  exec.launch("lpq_slice_columns_" + std::to_string(dtype_bytes(op.x.dtype)), {stride_blocks(exec, rows * width, 256)},
              {256}, 0, op.x.raw(), op.y.raw(), rows, columns, width, first);
}

void place_columns(Call& call, CudaExec& exec) {
  const ops::SomeColumns op(call, true);
  const long long rows = op.x.dim(0), width = op.x.dim(1), columns = op.y.dim(1);
  if (op.x.elements() == 0) return;
  const long long size = static_cast<long long>(dtype_bytes(op.x.dtype));
  std::byte* target = op.y.raw() + op.first * size;
  if (rows == 1 || width == columns) return exec.copy(target, op.x.raw(), op.x.bytes());
  // In words as wide as both sides have them.
  long long word = 8;
  while (word > size && (reinterpret_cast<uintptr_t>(op.x.raw()) % word || reinterpret_cast<uintptr_t>(target) % word ||
                         width * size % word || columns * size % word))
    word /= 2;
  const long long across = width * size / word, apart = columns * size / word;
  void* to = target;
  exec.launch("lpq_place_columns_" + std::to_string(word), {stride_blocks(exec, rows * across, 256)}, {256}, 0,
              op.x.raw(), to, rows, apart, across);
}

void transpose(Call& call, CudaExec& exec) {
  const ops::Transpose op(call);
  const long long rows = op.x.dim(0), columns = op.x.dim(1);
  if (op.x.elements() == 0) return;
  exec.launch("lpq_transpose_" + std::to_string(dtype_bytes(op.x.dtype)), {div_up(rows, 32) * div_up(columns, 32)},
              Dim3(32, 8), 0, op.x.raw(), op.y.raw(), rows, columns);
}

}  // namespace
LPQ_CUDA_OP(slice_columns, "slice_columns");
LPQ_CUDA_OP(place_columns, "place_columns");
LPQ_CUDA_OP(transpose, "transpose");
}  // namespace lpq::cuda
