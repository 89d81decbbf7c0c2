// scale_rows, xielu.
#include "cuda/launch.h"
#include "ops/elementwise.h"

namespace lpq::cuda {
namespace {

constexpr int kThreads = 256;

void scale_rows(Call& call, CudaExec& exec) {
  const ops::ScaleRows a(call);
  const long long count = a.x.dim(0) * a.width, width = a.width, pitch = a.columns.pitch;
  if (count == 0) return;
  const auto at = [&](const Tensor& tensor) {
    return static_cast<void*>(tensor.raw() + a.columns.first * static_cast<int64_t>(dtype_bytes(tensor.dtype)));
  };
  const void *from = at(a.x), *scales = raw_of(a.scales);
  void* to = at(a.y);
  const int each = a.scales && a.scales->elements() > 1;
  exec.launch("lpq_scale_rows" + suffix(a.x), {stride_blocks(exec, count, kThreads)}, {kThreads}, 0, from, scales,
              type_of(a.scales), to, a.factor, count, width, pitch, each);
}

void xielu(Call& call, CudaExec& exec) {
  const ops::Xielu a(call);
  const long long count = a.x.elements();
  const void *from = a.x.raw(), *positive = a.positive.raw(), *negative = a.negative.raw(), *beta = a.beta.raw(),
             *eps = a.eps.raw();
  void* to = a.y.raw();
  exec.launch("lpq_xielu" + suffix(a.x), {stride_blocks(exec, count, kThreads)}, {kThreads}, 0, from, positive,
              type_index(a.positive.dtype), negative, type_index(a.negative.dtype), beta, type_index(a.beta.dtype), eps,
              type_index(a.eps.dtype), to, count);
}

}  // namespace
LPQ_CUDA_OP(scale_rows, "scale_rows");
LPQ_CUDA_OP(xielu, "xielu");
}  // namespace lpq::cuda
