// channel_statistics, block_errors: the CPU's bytes.
#include "cuda/quant/search.h"

#include "cuda/launch.h"
#include "ops/w4ax.h"

namespace lpq::cuda {
namespace {

static_assert(ops::BlockErrors::kMostChoices == kMostChoices);

void channel_statistics(Call& call, CudaExec& exec) {
  const ops::ChannelStatistics a(call);
  if (a.x.elements() == 0) return;
  const int64_t rows = a.x.dim(0);
  const int k = static_cast<int>(a.x.dim(1));
  uint32_t* fault = exec.fault("LPQ_NATIVE_NUMERICS", "activations hold NaN or infinity");
  exec.launch("lpq_channel_statistics" + suffix(a.x), {div_up(k, 128)}, {128}, 0, static_cast<const void*>(a.x.raw()),
              a.most.data<float>(), a.moments.data<double>(), rows, k, fault);
}

void block_errors(Call& call, CudaExec& exec) {
  const ops::BlockErrors a(call);
  if (a.blocks == 0) return;
  BlockErrorsArgs args{};
  args.x = a.x.data<float>();
  args.weight = a.weight.data<float>();
  args.order = a.order.data<int32_t>();
  args.errors = a.errors.data<double>();
  args.rows = a.rows;
  args.k = static_cast<int>(a.k);
  args.count = static_cast<int>(a.choices);
  for (size_t c = 0; c < a.bits.size(); ++c) {
    args.top[c] = a.bits[c] == 4 ? 7.0f : 127.0f;
    args.ratio[c] = static_cast<float>(a.clips[c]) / args.top[c];
  }
  args.fault = exec.fault("LPQ_NATIVE_ARGUMENT", "order names a column that x does not have");
  exec.launch("lpq_block_errors", {a.blocks}, {kSearchThreads}, 0, args);
}

}  // namespace
LPQ_CUDA_OP(channel_statistics, "channel_statistics");
LPQ_CUDA_OP(block_errors, "block_errors");
}  // namespace lpq::cuda
