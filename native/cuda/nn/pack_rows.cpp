#include "cuda/launch.h"
#include "ops/tokens.h"

namespace lpq::cuda {
namespace {

constexpr int kThreads = 256;

void pack_rows(Call& call, CudaExec& exec) {
  const ops::PackRows op(call);
  const long long width = op.x.dim(1);
  const bool vec = width % 4 == 0 && fours(op.x) && fours(op.y);
  const int threads = width <= 4096 || !vec ? kThreads : 512;
  const int64_t kept = div_up(width, int64_t{4} * threads);
  const std::string how = !vec ? ""
                               : "_" + std::to_string(threads) +
                                     (kept <= 1                          ? "_1"
                                      : kept <= 2 && threads == kThreads ? "_2"
                                      : kept <= 4                        ? "_4"
                                                                         : "_8");
  exec.launch("lpq_pack_rows" + how, {op.x.dim(0)}, {threads}, 0, op.x.data<float>(), op.y.data<uint16_t>(),
              op.scales.data<float>(), width);
}

void unpack_rows(Call& call, CudaExec& exec) {
  const ops::UnpackRows op(call);
  const long long width = op.y.dim(1);
  const int vec = width % 4 == 0 && fours(op.x) && fours(op.y);
  exec.launch("lpq_unpack_rows", {op.y.dim(0)}, {kThreads}, 0, op.y.data<uint16_t>(), op.scales.data<float>(),
              op.x.data<float>(), width, vec);
}

}  // namespace
LPQ_CUDA_OP(pack_rows, "pack_rows");
LPQ_CUDA_OP(unpack_rows, "unpack_rows");
}  // namespace lpq::cuda
