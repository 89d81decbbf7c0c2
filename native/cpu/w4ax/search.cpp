// channel_statistics, block_errors: what the permutation search and the choice of precisions measure.
#include <atomic>
#include <vector>

#include "cpu/w4ax/codes.h"
#include "cpu/w4ax/kernels.h"
#include "ops/w4ax.h"

namespace lpq::w4ax {
namespace {

void channel_statistics(Call& call, Exec& exec) {
  const ops::ChannelStatistics p(call);
  const Tensor& x = p.x;
  require_f32({{&x, "x"}});
  const int64_t rows = x.dim(0), k = x.dim(1);
  const float* from = x.data<float>();
  float* peak = p.most.data<float>();
  double* sum = p.moments.data<double>();
  std::atomic<bool> bad{false};
  exec.pool.parallel_for(k, std::max<int64_t>(16, rows_grain(2 * rows)), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t c = begin; c < end; ++c) {
        const float size = std::fabs(from[t * k + c]);
        if (!(size <= std::numeric_limits<float>::max())) bad = true;
        peak[c] = std::max(peak[c], size);
        sum[c] += static_cast<double>(size) * size;
      }
  });
  if (bad) throw Failure("LPQ_NATIVE_NUMERICS", "activations hold NaN or infinity");
}

// Squared errors of one block of one token, weighted; 16 partial sums that add in their order, so that any compiler may
// use vectors.
double squared_error(const float* x, const float* weight, float most, int bits, float clip) {
  const float scale = block_scale(most, bits, clip), inverse = scale > 0 ? 1.0f / scale : 0.0f, top = top_code(bits);
  float part[16] = {};
  for (int64_t i = 0; i < kBlock; i += 16)
    for (int64_t l = 0; l < 16; ++l) {
      const float error = block_code(x[i + l], inverse, top) * scale - x[i + l];
      part[l] += weight[i + l] * (error * error);
    }
  double sum = 0;
  for (float p : part) sum += p;
  return sum;
}

void block_errors(Call& call, Exec& exec) {
  const ops::BlockErrors p(call);
  require_order(p.order, "order", p.k);
  const int64_t rows = p.rows, k = p.k, blocks = p.blocks, choices = p.choices;
  const std::vector<double>&bits = p.bits, &clips = p.clips;
  const float *from = p.x.data<float>(), *importance = p.weight.data<float>();
  const int32_t* index = p.order.data<int32_t>();
  double* to = p.errors.data<double>();
  exec.pool.parallel_for(blocks, 1, [&](int64_t begin, int64_t end, int) {
    float values[kBlock], weights[kBlock];
    for (int64_t b = begin; b < end; ++b) {
      for (int64_t i = 0; i < kBlock; ++i) weights[i] = importance[index[b * kBlock + i]];
      std::fill_n(to + b * choices, choices, 0.0);
      for (int64_t t = 0; t < rows; ++t) {
        float most = 0;
        for (int64_t i = 0; i < kBlock; ++i) {
          values[i] = from[t * k + index[b * kBlock + i]];
          most = std::max(most, std::fabs(values[i]));
        }
        for (int64_t c = 0; c < choices; ++c)
          to[b * choices + c] += squared_error(values, weights, most, static_cast<int>(bits[static_cast<size_t>(c)]),
                                               static_cast<float>(clips[static_cast<size_t>(c)]));
      }
    }
  });
}

}  // namespace
LPQ_OP(channel_statistics, "channel_statistics");
LPQ_OP(block_errors, "block_errors");
}  // namespace lpq::w4ax
