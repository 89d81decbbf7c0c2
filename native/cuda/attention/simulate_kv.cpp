// simulate_kv: the CPU's bytes.
#include "cuda/launch.h"
#include "ops/w4ax.h"

namespace lpq::cuda {
namespace {

void simulate_kv(Call& call, CudaExec& exec) {
  const ops::SimulateKv a(call);
  if (a.x.elements() == 0) return;
  require(a.tokens < (int64_t{1} << 31), "x has 2^31 rows or more");
  const int64_t group = std::min(a.group, a.tokens), runs = a.tokens / group + a.sequences;
  const int sequences = static_cast<int>(a.sequences), tokens = static_cast<int>(a.tokens),
            width = static_cast<int>(a.width), each = static_cast<int>(group), clip = a.clip;
  const float top = static_cast<float>((1 << a.bits) - 1);
  uint32_t* fault = exec.fault("LPQ_NATIVE_ARGUMENT", "starts do not cover x");
  exec.launch("lpq_simulate_kv" + suffix(a.x), {div_up(a.width, 128), runs}, {128}, 0,
              static_cast<const void*>(a.x.raw()), a.starts.data<int32_t>(), a.y.raw(), sequences, tokens, width, each,
              top, clip, fault);
}

}  // namespace
LPQ_CUDA_OP(simulate_kv, "simulate_kv");
}  // namespace lpq::cuda
