// quantize_activations, dequantize_activations, gather_columns: what linears read in W4Ax. Contracts: native/ops.ts.
#include <atomic>
#include <vector>

#include "cpu/w4ax/codes.h"
#include "cpu/w4ax/kernels.h"

namespace lpq::w4ax {
namespace {

void quantize_activations(Call& call, Exec& exec) {
  const Tensor &x = call.input(0), &bits = call.input(1), &clip = call.input(2);
  const Tensor &codes = call.output(0), &scales = call.output(1);
  require_tensor(x, "x", DType::f32, {-1, -1});
  const int64_t rows = x.dim(0), k = x.dim(1), blocks = k / kBlock;
  require(k > 0 && k % kBlock == 0, "x has " + std::to_string(k) + " columns, which is no multiple of 128");
  require_tensor(bits, "bits", DType::u8, {blocks});
  require_tensor(clip, "clip", DType::f32, {blocks});
  require_tensor(codes, "codes", DType::i8, {rows, k});
  require_tensor(scales, "scales", DType::f32, {rows, blocks});
  const uint8_t* width = bits.data<uint8_t>();
  for (int64_t b = 0; b < blocks; ++b)
    require(width[b] == 4 || width[b] == 8, "bits holds " + std::to_string(width[b]) + ", not 4 or 8");
  const int32_t* order = nullptr;
  if (call.in.size() > 3) {
    require_order(call.input(3), "order", k);
    require_shape(call.input(3), "order", {k});
    order = call.input(3).data<int32_t>();
  }
  const float *from = x.data<float>(), *ratio = clip.data<float>();
  int8_t* to = codes.data<int8_t>();
  float* scale = scales.data<float>();
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
  const Tensor &codes = call.input(0), &scales = call.input(1), &x = call.output(0);
  require_tensor(codes, "codes", DType::i8, {-1, -1});
  const int64_t rows = codes.dim(0), k = codes.dim(1), blocks = k / kBlock;
  require(k > 0 && k % kBlock == 0, "codes have " + std::to_string(k) + " columns, which is no multiple of 128");
  require_tensor(scales, "scales", DType::f32, {rows, blocks});
  require_tensor(x, "x", DType::f32, {rows, k});
  const int8_t* from = codes.data<int8_t>();
  const float* scale = scales.data<float>();
  float* to = x.data<float>();
  exec.pool.parallel_for(rows * blocks, rows_grain(kBlock), [&](int64_t begin, int64_t end, int) {
    for (int64_t b = begin; b < end; ++b)
      for (int64_t i = b * kBlock; i < (b + 1) * kBlock; ++i) to[i] = static_cast<float>(from[i]) * scale[b];
  });
}

void gather_columns(Call& call, Exec& exec) {
  const Tensor &x = call.input(0), &order = call.input(1), &y = call.output(0);
  require_tensor(x, "x", DType::f32, {-1, -1});
  require_tensor(y, "y", DType::f32, x.shape);
  require(x.raw() != y.raw(), "y is x");
  const int64_t k = x.dim(1);
  require_order(order, "order", k);
  require_shape(order, "order", {k});
  const float* from = x.data<float>();
  const int32_t* index = order.data<int32_t>();
  float* to = y.data<float>();
  exec.pool.parallel_for(x.dim(0), rows_grain(k), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t j = 0; j < k; ++j) to[t * k + j] = from[t * k + index[j]];
  });
}

}  // namespace
LPQ_OP(quantize_activations, "quantize_activations");
LPQ_OP(dequantize_activations, "dequantize_activations");
LPQ_OP(gather_columns, "gather_columns");
}  // namespace lpq::w4ax
