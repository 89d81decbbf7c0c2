// Codes back to weights.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/quant/grid.h"
#include "cpu/quant/scale.h"
#include "lpq/half.h"
#include "ops/quant.h"

namespace lpq {
namespace {

void dequantize(Call& call, Exec& exec) {
  const ops::Dequantize a(call);
  const Tensor &codes = a.codes, &scales = a.scales, &w = a.w, *zeros = a.zeros, *group = a.group;
  const int64_t n = codes.dim(0), k = codes.dim(1), width = scales.dim(1), block_n = a.block_n, block_k = a.block_k;
  const float constant = a.zero, global = a.global;
  std::vector<int32_t> group_of(static_cast<size_t>(k));
  if (group) {
    const int32_t* index = group->data<int32_t>();
    for (int64_t i = 0; i < k; ++i) {
      require(index[i] >= 0 && index[i] < width, "the group index of input feature " + std::to_string(i) + " is " +
                                                     std::to_string(index[i]) + ", of " + std::to_string(width));
      group_of[i] = index[i];
    }
  } else {
    for (int64_t i = 0; i < k; ++i) group_of[i] = static_cast<int32_t>(i / block_k);
  }

  float table[256];
  with_grid(a.type, [&](const auto& grid) {
    for (uint32_t code = 0; code < 256; ++code) {
      const uint32_t pattern = code & (a.type.codes() - 1u);  // bits above the type's are ignored
      const float number = a.type.decode(pattern);
      table[code] = std::isnan(number) ? number : grid.value(pattern);
    }
  });
  const uint8_t* q = codes.data<uint8_t>();
  std::byte* out = w.raw();
  const int64_t size = static_cast<int64_t>(dtype_bytes(w.dtype));
  exec.total = n;
  const int64_t grain = std::max<int64_t>(1, (1 << 17) / std::max<int64_t>(k, 1));
  exec.pool.parallel_for(n, grain, [&](int64_t begin, int64_t end, int) {
    std::vector<float> scale(width), zero(width, constant), line(static_cast<size_t>(k));
    int64_t loaded = -1;
    for (int64_t row = begin; row < end; ++row) {
      if (row / block_n != loaded) {
        loaded = row / block_n;
        for (int64_t g = 0; g < width; ++g) scale[g] = read_number(scales.dtype, scales.raw(), loaded * width + g);
        if (zeros)
          for (int64_t g = 0; g < width; ++g) zero[g] = read_number(zeros->dtype, zeros->raw(), loaded * width + g);
      }
      const uint8_t* from = q + row * k;
      if (group) {
        for (int64_t i = 0; i < k; ++i) line[i] = (table[from[i]] - zero[group_of[i]]) * scale[group_of[i]] * global;
      } else {
        for (int64_t g = 0; g < width; ++g) {
          const float s = scale[g], z = zero[g];
          const int64_t stop = std::min(k, (g + 1) * block_k);
          for (int64_t i = g * block_k; i < stop; ++i) line[i] = (table[from[i]] - z) * s * global;
        }
      }
      std::byte* to = out + row * k * size;
      if (w.dtype == DType::f32) {
        std::copy_n(line.data(), k, reinterpret_cast<float*>(to));
      } else if (w.dtype == DType::bf16) {
        for (int64_t i = 0; i < k; ++i) reinterpret_cast<uint16_t*>(to)[i] = f32_to_bf16(line[i]);
      } else {
        for (int64_t i = 0; i < k; ++i) reinterpret_cast<uint16_t*>(to)[i] = f32_to_f16(line[i]);
      }
    }
    exec.done += end - begin;
  });
}

LPQ_OP(dequantize, "dequantize");

}  // namespace
}  // namespace lpq
