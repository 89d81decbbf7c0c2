// Body of kernels_*.cpp; see kernels.h. Included once per instruction set, inside an anonymous namespace.

// Rows go four at a time: a row's columns form one dependent chain (round, divide, update), four chains hide its
// latency.
template <class Grid>
void solve_block(const Grid& grid, const BlockArgs& a, int64_t row_begin, int64_t row_end) {
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
        *level = grid.nearest(x[r][j], grid.step(scale, zero)).value;
        step[r] = (x[r][j] - (*level - zero) * scale) / line[j];
        a.delta[(row + r) * kBlock + j] = step[r];
      }
      for (int r = 0; r < rows; ++r) {
        if (step[r] == 0.0f) continue;
        float* out = x[r];
        for (int64_t i = j + 1; i < width; ++i) out[i] = std::fma(-step[r], line[i], out[i]);
      }
    }
    for (int r = 0; r < rows; ++r)
      for (int64_t j = width; j < kBlock; ++j) a.delta[(row + r) * kBlock + j] = 0.0f;
  }
}

// One row's block of a descent. Few codes move: some columns are looked at together, and again from the one behind the
// first that moves, whose change reaches them.
template <class Grid>
class DescentRow {
 public:
  DescentRow(const Grid& grid, const BlockArgs& a) : grid_(grid), a_(a), width_(a.last - a.first) {
    for (int64_t j = 0; j < kBlock; ++j) diagonal_[j] = j < width_ ? a.matrix[(a.first + j) * a.k + a.first + j] : 1.0f;
  }

  void descend(int64_t row) {
    read(row);
    float *level = a_.level + row * a_.k + a_.first, *delta = a_.delta + row * kBlock;
    for (int64_t j = 0; j < kBlock; ++j) delta[j] = 0.0f;
    for (int64_t j = 0; j < width_; j += kTogether)
      for (int64_t from = first_moved(j, 0); from < kTogether; from = first_moved(j, from + 1)) {
        const int64_t at = j + from;
        const float step = (next_[from] - level_[at]) * scale_[at];
        level[at] = level_[at] = next_[from];
        delta[at] = step;
        const float* line = a_.matrix + (a_.first + at) * a_.k + a_.first;
        for (int64_t i = at + 1; i < width_; ++i) x_[i] = std::fma(step, line[i], x_[i]);
      }
  }

 private:
  static constexpr int64_t kTogether = 16;

  void read(int64_t row) {
    const int64_t at = row * a_.k + a_.first;
    const float *scale = a_.scale + row * a_.groups, *zero = a_.zero ? a_.zero + row * a_.groups : nullptr;
    for (int64_t j = 0; j < width_; ++j) {
      x_[j] = a_.w[at + j];
      level_[j] = a_.level[at + j];
      scale_[j] = scale[a_.group[a_.first + j]];
      zero_[j] = zero ? zero[a_.group[a_.first + j]] : 0.0f;
    }
    for (int64_t j = width_; j < kBlock; ++j) x_[j] = level_[j] = zero_[j] = 0.0f, scale_[j] = 1.0f;
  }

  // The first of the columns j + from, ... that should have another code, given all others; kTogether: none. next_: of
  // every one of them.
  int64_t first_moved(int64_t j, int64_t from) {
    for (int64_t i = 0; i < kTogether; ++i) {
      const float now = (level_[j + i] - zero_[j + i]) * scale_[j + i];
      next_[i] = grid_.nearest(now - x_[j + i] / diagonal_[j + i], grid_.step(scale_[j + i], zero_[j + i])).value;
    }
    const int64_t end = width_ - j < kTogether ? width_ - j : kTogether;
    int32_t first = kTogether;
    for (int32_t i = 0; i < kTogether; ++i) {
      const bool moved = (next_[i] != level_[j + i]) & (i >= from) & (i < end);
      const int32_t where = moved ? i : static_cast<int32_t>(kTogether);
      first = where < first ? where : first;
    }
    return first;
  }

  const Grid& grid_;
  const BlockArgs& a_;
  int64_t width_;
  alignas(64) float x_[kBlock], level_[kBlock], scale_[kBlock], zero_[kBlock], diagonal_[kBlock];
  alignas(64) float next_[kTogether];
};

void solve(const BlockArgs& a, int64_t row_begin, int64_t row_end) {
  with_grid(*a.type, [&](const auto& grid) { solve_block(grid, a, row_begin, row_end); });
}

void descend(const BlockArgs& a, int64_t row_begin, int64_t row_end) {
  with_grid(*a.type, [&](const auto& grid) {
    DescentRow<std::decay_t<decltype(grid)>> rows(grid, a);
    for (int64_t row = row_begin; row < row_end; ++row) rows.descend(row);
  });
}

int64_t spread(const BlockArgs& a, int64_t row_begin, int64_t row_end) {
  constexpr int64_t kTile = 64;  // columns whose sums stay in registers
  int64_t all = 0;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* delta = a.delta + row * kBlock;
    const float* lines[kBlock];
    float steps[kBlock];
    int count = 0;
    for (int64_t j = 0; j < a.last - a.first; ++j) {
      if (delta[j] == 0.0f) continue;
      lines[count] = a.matrix + (a.first + j) * a.k;
      steps[count++] = delta[j];
    }
    all += count;
    if (count == 0) continue;
    float* out = a.w + row * a.k;
    int64_t c = a.last;
    for (; c + kTile <= a.k; c += kTile) {
      float sum[kTile];
      std::memcpy(sum, out + c, sizeof sum);
      for (int m = 0; m < count; ++m)
        for (int64_t i = 0; i < kTile; ++i) sum[i] = std::fma(steps[m], lines[m][c + i], sum[i]);
      std::memcpy(out + c, sum, sizeof sum);
    }
    for (int m = 0; m < count; ++m)
      for (int64_t i = c; i < a.k; ++i) out[i] = std::fma(steps[m], lines[m][i], out[i]);
  }
  return all;
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

constexpr Kernels kTable{solve, descend, spread, residual, dot, prune, sparse_solve, sparse_descend};
