#include "ops/interleave_gates.h"

#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

constexpr int kThreads = 256;

void interleave_gates(Call& call, CudaExec& exec) {
  const ops::InterleaveGates a(call);
  if (a.x.elements() == 0) return;
  const void* from = a.x.raw();
  void* to = a.y.raw();
  const long long blocks = a.experts * a.half, half = a.half, across = a.across;
  if (a.of == a.kWords) {
    exec.launch("lpq_interleave_words_" + std::to_string(a.bits),
                {stride_blocks(exec, blocks * across * 128, kThreads)}, {kThreads}, 0, from, to, blocks, half, across);
  } else {
    const int rows = a.of == a.kRows;
    exec.launch(dtype_bytes(a.x.dtype) == 1 ? "lpq_interleave_u8" : "lpq_interleave_u16",
                {stride_blocks(exec, blocks * across * 8, kThreads)}, {kThreads}, 0, from, to, blocks, half, across,
                rows);
  }
}
LPQ_CUDA_OP(interleave_gates, "interleave_gates");

}  // namespace
}  // namespace lpq::cuda
