#include "cuda/gemm/families/operands.h"

namespace lpq::cuda {

PaddedRows::PaddedRows(const Tensor& from, int64_t unit, const Tensor* order, CudaExec& exec)
    : x(from.data<uint16_t>()), k(static_cast<int>(div_up(from.dim(1), unit) * unit)) {
  const long long count = from.dim(0);
  const int width = static_cast<int>(from.dim(1));
  if (!order && k == width && reinterpret_cast<uintptr_t>(x) % 16 == 0) return;
  made.emplace(exec.scratch(static_cast<size_t>(count * k) * 2));
  uint16_t* const to = made->as<uint16_t>();
  const Dim3 grid = {stride_blocks(exec, count * k, 256)};
  if (order) {
    uint32_t* fault = exec.fault("LPQ_NATIVE_ARGUMENT", "the permutation names a column that x does not have");
    exec.launch("lpq_gather_columns", grid, {256}, 0, x, order->data<int>(), to, count, width, k, fault);
  } else {
    exec.launch("lpq_pad_rows", grid, {256}, 0, x, to, count, width, k);
  }
  x = to;
}

}  // namespace lpq::cuda
