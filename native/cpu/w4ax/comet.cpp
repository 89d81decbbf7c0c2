// quantize_comet, gemm_comet: W4Ax in the form that the GPU's kernel reads.
#include <atomic>
#include <vector>

#include "cpu/w4ax/codes.h"
#include "cpu/w4ax/kernels.h"
#include "lpq/half.h"
#include "ops/gemm_comet.h"

namespace lpq::w4ax {
namespace {

// Every block is one that x8 or x4 has.
void require_blocks(const ops::W4axBlocks& x) {
  for (int64_t b = 0; b < x.count; ++b) {
    const int32_t place = x.blocks.data<int32_t>()[b];
    require(place >= 0 ? place < x.eights : ~place < x.fours,
            "blocks holds " + std::to_string(place) + ", a block that is not there");
  }
}

void quantize_comet(Call& call, Exec& exec) {
  const ops::QuantizeComet p(call);
  const Tensor &x8 = p.to.x8, &x4 = p.to.x4, &blocks = p.to.blocks;
  const int64_t count = p.to.count;
  require_f32({{&p.x, "x"}});
  require_blocks(p.to);
  const int64_t rows = p.rows, k = p.k, pitch = p.scales.dim(1);
  const uint8_t* width = p.bits.data<uint8_t>();
  for (int64_t b = 0; b < count; ++b)
    require(width[b] == 4 || (width[b] == 8 && blocks.data<int32_t>()[b] >= 0),
            "bits holds " + std::to_string(width[b]) + " where blocks says otherwise");
  if (p.order) require_order(*p.order, "order", k);
  const int32_t* order = p.order ? p.order->data<int32_t>() : nullptr;
  std::atomic<bool> bad{false};
  exec.pool.parallel_for(rows, rows_grain(6 * k), [&](int64_t begin, int64_t end, int) {
    float values[kBlock];
    int codes[kBlock];
    for (int64_t t = begin; t < end; ++t)
      for (int64_t b = 0; b < count; ++b) {
        float most = 0;
        bool finite = true;
        for (int64_t i = 0; i < kBlock; ++i) {
          const int64_t column = b * kBlock + i;
          values[i] = p.x.data<float>()[t * k + (order ? order[column] : column)];
          finite &= std::fabs(values[i]) <= std::numeric_limits<float>::max();
          most = std::max(most, std::fabs(values[i]));
        }
        if (!finite) bad = true;
        const float s = finite ? block_scale(most, width[b], p.clip.data<float>()[b]) : 0.0f;
        const float inverse = s > 0 ? 1.0f / s : 0.0f, top = top_code(width[b]);
        p.scales.data<float>()[b * pitch + t] = s;
        for (int64_t i = 0; i < kBlock; ++i)
          codes[i] = finite ? static_cast<int>(block_code(values[i], inverse, top)) : 0;
        const int32_t place = blocks.data<int32_t>()[b];
        if (place >= 0) {
          int8_t* const to = x8.data<int8_t>() + t * x8.dim(1) + place * kBlock;
          for (int64_t i = 0; i < kBlock; ++i) to[i] = static_cast<int8_t>(codes[i]);
        } else {
          uint8_t* const to = x4.data<uint8_t>() + t * x4.dim(1) + ~place * (kBlock / 2);
          for (int64_t i = 0; i < kBlock / 2; ++i) {
            const int64_t low = i / 16 * 32 + i % 16;
            to[i] = static_cast<uint8_t>((codes[low] & 15) | (codes[low + 16] & 15) << 4);
          }
        }
      }
  });
  if (bad) throw Failure("LPQ_NATIVE_NUMERICS", "activations hold NaN or infinity");
}

int signed_nibble(int bits) { return bits >= 8 ? bits - 16 : bits; }

void gemm_comet(Call& call, Exec& exec) {
  const ops::GemmComet p(call);
  const Tensor &x8 = p.x.x8, &x4 = p.x.x4, &blocks = p.x.blocks;
  const int64_t count = p.x.count;
  const Tensor &x_scales = p.x_scales, &w = p.w, &w_scales = p.w_scales, &y = p.y;
  const int64_t m = p.m, n = p.n, x_pitch = x_scales.dim(1);
  require_blocks(p.x);
  const RowFactors factors(p.group_scales, count, n);
  const float* bias = p.bias ? p.bias->data<float>() : nullptr;
  // Activations once, [m, count, 128].
  std::vector<int8_t> codes(static_cast<size_t>(m * count * kBlock));
  for (int64_t t = 0; t < m; ++t)
    for (int64_t b = 0; b < count; ++b) {
      const int32_t place = blocks.data<int32_t>()[b];
      for (int64_t i = 0; i < kBlock; ++i)
        codes[static_cast<size_t>((t * count + b) * kBlock + i)] =
            place >= 0
                ? x8.data<int8_t>()[t * x8.dim(1) + place * kBlock + i]
                : static_cast<int8_t>(signed_nibble(
                      x4.data<uint8_t>()[t * x4.dim(1) + ~place * 64 + i / 32 * 16 + i % 16] >> 4 * (i % 32 / 16) &
                      15));
    }
  exec.pool.parallel_for(n, std::max<int64_t>(1, rows_grain(m * count * kBlock)), [&](int64_t begin, int64_t end, int) {
    std::vector<int8_t> row(static_cast<size_t>(count * kBlock));
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t i = 0; i < count * kBlock; ++i) {
        const int64_t chunk = i % 128 / 32, lane = 4 * (r % 8) + i % 16 / 4,
                      byte = chunk / 2 * 512 + lane * 16 + (chunk % 2 * 2 + r % 16 / 8) * 4 + i % 4;
        row[static_cast<size_t>(i)] = static_cast<int8_t>(
            signed_nibble(w.data<uint8_t>()[(r / 16 * count + i / 128) * 1024 + byte] >> 4 * (i % 32 / 16) & 15) *
            factors.of(i / 128, r));
      }
      for (int64_t t = 0; t < m; ++t) {
        float sum = 0;
        for (int64_t b = 0; b < count; ++b) {
          int32_t part = 0;
          for (int64_t i = b * kBlock; i < (b + 1) * kBlock; ++i)
            part += codes[static_cast<size_t>(t * count * kBlock + i)] * row[static_cast<size_t>(i)];
          const float token = x_scales.data<float>()[b * x_pitch + t];
          sum = std::fma(static_cast<float>(part),
                         p.two_level ? token : token * w_scales.data<float>()[b * w_scales.dim(1) + r], sum);
        }
        const float out = (p.two_level ? sum * w_scales.data<float>()[r] : sum) + (bias ? bias[r] : 0.0f);
        if (y.dtype == DType::f32) y.data<float>()[t * n + r] = out;
        else y.data<uint16_t>()[t * n + r] = y.dtype == DType::f16 ? f32_to_f16(out) : f32_to_bf16(out);
      }
    }
  });
}

}  // namespace
LPQ_OP(quantize_comet, "quantize_comet");
LPQ_OP(gemm_comet, "gemm_comet");
}  // namespace lpq::w4ax
