// quantize_comet, gemm_comet: W4Ax in the form that the GPU's kernel reads. Contracts: native/w4ax-ops.ts.
#include <atomic>
#include <vector>

#include "cpu/w4ax/codes.h"
#include "cpu/w4ax/kernels.h"
#include "lpq/half.h"

namespace lpq::w4ax {
namespace {

void require_blocks(const Tensor& blocks, int64_t count, const Tensor& x8, const Tensor& x4, int64_t rows) {
  require_tensor(blocks, "blocks", DType::i32, {count});
  require_tensor(x8, "x8", DType::i8, {rows, -1});
  require_tensor(x4, "x4", DType::u8, {rows, -1});
  const int64_t eights = x8.dim(1) / kBlock, fours = x4.dim(1) / (kBlock / 2);
  require(x8.dim(1) % kBlock == 0 && x4.dim(1) % (kBlock / 2) == 0 && eights + fours == count,
          "x8 and x4 have not " + std::to_string(count) + " blocks");
  for (int64_t b = 0; b < count; ++b) {
    const int32_t place = blocks.data<int32_t>()[b];
    require(place >= 0 ? place < eights : ~place < fours,
            "blocks holds " + std::to_string(place) + ", a block that is not there");
  }
}

void quantize_comet(Call& call, Exec& exec) {
  const Tensor &x = call.input(0), &bits = call.input(1), &clip = call.input(2), &blocks = call.input(3);
  const Tensor &x8 = call.output(0), &x4 = call.output(1), &scales = call.output(2);
  require_tensor(x, "x", DType::f32, {-1, -1});
  const int64_t rows = x.dim(0), k = x.dim(1), count = k / kBlock, pitch = (rows + 3) / 4 * 4;
  require(k > 0 && k % kBlock == 0, "x has " + std::to_string(k) + " columns, which is no multiple of 128");
  require_tensor(bits, "bits", DType::u8, {count});
  require_tensor(clip, "clip", DType::f32, {count});
  require_blocks(blocks, count, x8, x4, rows);
  require_tensor(scales, "scales", DType::f32, {count, pitch});
  const uint8_t* width = bits.data<uint8_t>();
  for (int64_t b = 0; b < count; ++b)
    require(width[b] == (blocks.data<int32_t>()[b] < 0 ? 4 : 8),
            "bits holds " + std::to_string(width[b]) + " where blocks says otherwise");
  const int32_t* order = nullptr;
  if (call.in.size() > 4) {
    require_order(call.input(4), "order", k);
    require_shape(call.input(4), "order", {k});
    order = call.input(4).data<int32_t>();
  }
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
          values[i] = x.data<float>()[t * k + (order ? order[column] : column)];
          finite &= std::fabs(values[i]) <= std::numeric_limits<float>::max();
          most = std::max(most, std::fabs(values[i]));
        }
        if (!finite) bad = true;
        const float s = finite ? block_scale(most, width[b], clip.data<float>()[b]) : 0.0f;
        const float inverse = s > 0 ? 1.0f / s : 0.0f, top = top_code(width[b]);
        scales.data<float>()[b * pitch + t] = s;
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
  const Tensor &x8 = call.input(0), &x4 = call.input(1), &x_scales = call.input(2), &blocks = call.input(3),
               &w = call.input(4), &w_scales = call.input(5);
  const Tensor& y = call.output(0);
  require_dtype(y, "y", {DType::f32, DType::f16, DType::bf16});
  require_shape(y, "y", {-1, -1});
  require_tensor(blocks, "blocks", DType::i32, {-1});
  const int64_t m = y.dim(0), n = y.dim(1), count = blocks.dim(0), x_pitch = (m + 3) / 4 * 4;
  require_blocks(blocks, count, x8, x4, m);
  require_tensor(x_scales, "x_scales", DType::f32, {count, x_pitch});
  require_tensor(w, "w", DType::u8, {(n + 15) / 16, count, 1024});
  require_tensor(w_scales, "w_scales", DType::f32, {count, -1});
  require(w_scales.dim(1) >= n, "rows of w_scales are shorter than y's");
  const float* bias = nullptr;
  if (call.in.size() > 6) {
    require_tensor(call.input(6), "bias", DType::f32, {n});
    bias = call.input(6).data<float>();
  }
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
            signed_nibble(w.data<uint8_t>()[(r / 16 * count + i / 128) * 1024 + byte] >> 4 * (i % 32 / 16) & 15));
      }
      for (int64_t t = 0; t < m; ++t) {
        float sum = 0;
        for (int64_t b = 0; b < count; ++b) {
          int32_t part = 0;
          for (int64_t i = b * kBlock; i < (b + 1) * kBlock; ++i)
            part += codes[static_cast<size_t>(t * count * kBlock + i)] * row[static_cast<size_t>(i)];
          sum =
              std::fma(static_cast<float>(part),
                       x_scales.data<float>()[b * x_pitch + t] * w_scales.data<float>()[b * w_scales.dim(1) + r], sum);
        }
        const float out = sum + (bias ? bias[r] : 0.0f);
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
