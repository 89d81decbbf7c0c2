// Body of kernels_*.cpp; see kernels.h. Included once per instruction set, inside an anonymous namespace.
// Rows go four at a time: a row's columns form one dependent chain (round, divide, update), four chains hide its
// latency.

template <class Grid, bool kDescend>
void run_block(const Grid& grid, const BlockArgs& a, int64_t row_begin, int64_t row_end) {
  constexpr int kRows = 4;
  const int64_t width = a.last - a.first;
  alignas(64) float x[kRows][kBlock];
  for (int64_t row = row_begin; row < row_end; row += kRows) {
    const int rows = static_cast<int>(row_end - row < kRows ? row_end - row : kRows);
    for (int r = 0; r < rows; ++r)
      std::memcpy(x[r], a.w + (row + r) * a.k + a.first, sizeof(float) * static_cast<size_t>(width));
    for (int64_t j = 0; j < width; ++j) {
      const float* line = a.matrix + (a.first + j) * a.k + a.first;
      const int32_t g = a.group[a.first + j];
      float step[kRows];
      for (int r = 0; r < rows; ++r) {
        const float scale = a.scale[(row + r) * a.groups + g];
        const float zero = a.zero ? a.zero[(row + r) * a.groups + g] : 0.0f;
        float* level = a.level + (row + r) * a.k + a.first + j;
        if constexpr (kDescend) {
          const float now = (*level - zero) * scale;
          const float next_level = grid.nearest(now - x[r][j] / line[j], grid.step(scale, zero)).value;
          step[r] = (next_level - *level) * scale;
          *level = next_level;
        } else {
          *level = grid.nearest(x[r][j], grid.step(scale, zero)).value;
          step[r] = (x[r][j] - (*level - zero) * scale) / line[j];
        }
        a.delta[(row + r) * kBlock + j] = step[r];
      }
      for (int r = 0; r < rows; ++r) {
        if (step[r] == 0.0f) continue;
        const float s = kDescend ? step[r] : -step[r];
        float* out = x[r];
        for (int64_t i = j + 1; i < width; ++i) out[i] = std::fma(s, line[i], out[i]);
      }
    }
    for (int r = 0; r < rows; ++r)
      for (int64_t j = width; j < kBlock; ++j) a.delta[(row + r) * kBlock + j] = 0.0f;
  }
}

void solve(const BlockArgs& a, int64_t row_begin, int64_t row_end) {
  with_grid(*a.type,
            [&](const auto& grid) { run_block<std::decay_t<decltype(grid)>, false>(grid, a, row_begin, row_end); });
}

void descend(const BlockArgs& a, int64_t row_begin, int64_t row_end) {
  with_grid(*a.type,
            [&](const auto& grid) { run_block<std::decay_t<decltype(grid)>, true>(grid, a, row_begin, row_end); });
}

void residual(const QuantType& type, const float* w, float scale, float zero, float* out, int64_t count) {
  with_grid(type, [&](const auto& grid) {
    const auto step = grid.step(scale, zero);
    for (int64_t i = 0; i < count; ++i) out[i] = (grid.nearest(w[i], step).value - zero) * scale - w[i];
  });
}

double dot(const float* a, const float* b, int64_t count) {
  double part[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (int l = 0; l < 8; ++l) part[l] += static_cast<double>(a[i + l]) * static_cast<double>(b[i + l]);
  for (; i < count; ++i) part[i % 8] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
}

#include "cpu/gptq/sparse_body.h"

constexpr Kernels kTable{solve, descend, residual, dot, prune, sparse_solve, sparse_descend};
