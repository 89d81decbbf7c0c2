// prune_magnitude (cpu/quant/prune.cpp says what it does): the CPU's bytes.
#include "cuda/exec.h"
#include "cuda/launch.h"
#include "cuda/quant/number.h"

namespace lpq::cuda {
namespace {

void prune_magnitude(Call& call, CudaExec& exec) {
  const Tensor &w = call.input(0), &pruned = call.output(0), &mask = call.output(1);
  for (const Tensor* tensor : {&w, &pruned, &mask}) require_device(exec, *tensor, "an operand");
  require(w.rank() == 2 && pruned.shape == w.shape && pruned.dtype == DType::f32, "W and V must be [N,K], V f32");
  const int type = number_type(w.dtype);
  require(type >= 0 && type <= kNumberBf16, "W must be f32, f16 or bf16");
  const int64_t n = w.dim(0), k = w.dim(1), row_bytes = (k + 7) / 8;
  require(k % 4 == 0, "2:4 needs K divisible by 4");
  require(mask.dtype == DType::u8 && mask.shape == std::vector<int64_t>({n, row_bytes}),
          "mask must be u8 [N, ceil(K/8)]");
  exec.launch("lpq_prune_magnitude", Dim3(div_up(n * row_bytes, 256)), Dim3(256), 0,
              reinterpret_cast<const uint8_t*>(w.raw()), type, static_cast<int>(n), static_cast<int>(k),
              pruned.data<float>(), mask.data<uint8_t>());
}

LPQ_CUDA_OP(prune_magnitude, "prune_magnitude");

}  // namespace
}  // namespace lpq::cuda
