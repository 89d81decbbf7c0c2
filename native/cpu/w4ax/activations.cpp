// quantize_activations, dequantize_activations, gather_columns: what linears read in W4Ax.
#include <atomic>
#include <vector>

#include "cpu/w4ax/codes.h"
#include "cpu/w4ax/kernels.h"
#include "ops/w4ax.h"

namespace lpq::w4ax {
namespace {

void quantize_activations(Call& call, Exec& exec) {
  const ops::QuantizeActivations p(call);
  require_f32({{&p.x, "x"}});
  const int64_t rows = p.rows, k = p.k, blocks = p.blocks;
  const uint8_t* width = p.bits.data<uint8_t>();
  for (int64_t b = 0; b < blocks; ++b)
    require(width[b] == 4 || width[b] == 8, "bits holds " + std::to_string(width[b]) + ", not 4 or 8");
  if (p.order) require_order(*p.order, "order", k);
  const int32_t* order = p.order ? p.order->data<int32_t>() : nullptr;
  const float *from = p.x.data<float>(), *ratio = p.clip.data<float>();
  int8_t* to = p.codes.data<int8_t>();
  float* scale = p.scales.data<float>();
  std::atomic<bool> bad{false};
  exec.pool.parallel_for(rows, rows_grain(6 * k), [&](int64_t begin, int64_t end, int) {
    float values[kBlock];
    for (int64_t t = begin; t < end; ++t)
      for (int64_t b = 0; b < blocks; ++b) {
        const float* row = from + t * k;
        for (int64_t i = 0; i < kBlock; ++i) values[i] = order ? row[order[b * kBlock + i]] : row[b * kBlock + i];
        float most = 0;
        bool finite = true;
        for (float v : values) {
          finite &= std::fabs(v) <= std::numeric_limits<float>::max();
          most = std::max(most, std::fabs(v));
        }
        if (!finite) bad = true;
        const float s = finite ? block_scale(most, width[b], ratio[b]) : 0.0f;
        const float inverse = s > 0 ? 1.0f / s : 0.0f, top = top_code(width[b]);
        scale[t * blocks + b] = s;
        for (int64_t i = 0; i < kBlock; ++i)
          to[t * k + b * kBlock + i] = finite ? static_cast<int8_t>(block_code(values[i], inverse, top)) : int8_t{0};
      }
  });
  if (bad) throw Failure("LPQ_NATIVE_NUMERICS", "activations hold NaN or infinity");
}

void dequantize_activations(Call& call, Exec& exec) {
  const ops::DequantizeActivations p(call);
  require_f32({{&p.x, "x"}});
  const int8_t* from = p.codes.data<int8_t>();
  const float* scale = p.scales.data<float>();
  float* to = p.x.data<float>();
  exec.pool.for_each(p.rows * p.blocks, rows_grain(kBlock), [&](int64_t b) {
    for (int64_t i = b * kBlock; i < (b + 1) * kBlock; ++i) to[i] = static_cast<float>(from[i]) * scale[b];
  });
}

void gather_columns(Call& call, Exec& exec) {
  const ops::GatherColumns p(call);
  require_f32({{&p.x, "x"}});
  const int64_t k = p.x.dim(1);
  require_order(p.order, "order", k);
  const float* from = p.x.data<float>();
  const int32_t* index = p.order.data<int32_t>();
  float* to = p.y.data<float>();
  exec.pool.for_each(p.x.dim(0), rows_grain(k), [&](int64_t t) {
    for (int64_t j = 0; j < k; ++j) to[t * k + j] = from[t * k + index[j]];
  });
}

}  // namespace
LPQ_OP(quantize_activations, "quantize_activations");
LPQ_OP(dequantize_activations, "dequantize_activations");
LPQ_OP(gather_columns, "gather_columns");
}  // namespace lpq::w4ax
