// The solver's inner loops for 2:4 sparsity; included by kernels_body.h, once per instruction set. Four columns that
// follow one another in solving order are four that follow one another in the stored weight, and two of them stay.

// The pairs that may stay, as bits; of equal ones the first wins.
constexpr int kPairs = 6;
constexpr uint8_t kPair[kPairs] = {0b0011, 0b0101, 0b1001, 0b0110, 0b1010, 0b1100};

// Weights that are pruned and not rounded.
struct PlainGrid {
  struct Step {};
  LPQ_FORCE_INLINE Step step(float, float) const { return {}; }
  LPQ_FORCE_INLINE Rounded nearest(float w, const Step&) const { return {0, w}; }
};

// A choice for four columns of a row.
struct Quad {
  float level[4], step[4];  // step: scaled errors (solve) / changes of the weights (descend)
  uint8_t pair;
};

// The scale and zero of four columns, and their grid's steps.
template <class Grid>
struct QuadGrid {
  const Grid& grid;
  float scale[4], zero[4];
  typename Grid::Step step[4];

  QuadGrid(const Grid& from, const BlockArgs& a, int64_t row, int64_t column) : grid(from) {
    for (int c = 0; c < 4; ++c) {
      const int64_t at = row * a.groups + a.group[column + c];
      scale[c] = a.scale ? a.scale[at] : 1.0f;
      zero[c] = a.zero ? a.zero[at] : 0.0f;
      step[c] = grid.step(scale[c], zero[c]);
    }
  }
  float round(int c, float w) const { return grid.nearest(w, step[c]).value; }
  float weight(int c, float level) const { return (level - zero[c]) * scale[c]; }
};

// What the walk pays for a pair: the sum of squared scaled errors, the second and later columns being updated by the
// errors before them. Exact, as long as everything before stays and everything behind may still make up for it.
template <class Grid>
float walk_quad(const QuadGrid<Grid>& q, const float* x, const float* u, int64_t stride, uint8_t pair, Quad& out) {
  float y[4] = {x[0], x[1], x[2], x[3]}, loss = 0.0f;
  for (int c = 0; c < 4; ++c) {
    const bool kept = (pair >> c & 1) != 0;
    out.level[c] = kept ? q.round(c, y[c]) : q.zero[c];
    const float what = kept ? q.weight(c, out.level[c]) : 0.0f;
    out.step[c] = (y[c] - what) / u[c * stride + c];
    loss = std::fma(out.step[c], out.step[c], loss);
    for (int d = c + 1; d < 4; ++d) y[d] = std::fma(-out.step[c], u[c * stride + d], y[d]);
  }
  out.pair = pair;
  return loss;
}

// The change of (What - T) M (What - T)^T when four weights of a row move by `step`; g is the gradient there.
inline double quad_change(const float* g, const float* m, int64_t stride, const float* step) {
  double sum = 0;
  for (int c = 0; c < 4; ++c) {
    double line = 2.0 * static_cast<double>(g[c]);
    for (int d = 0; d < 4; ++d) line += static_cast<double>(m[c * stride + d]) * static_cast<double>(step[d]);
    sum += line * static_cast<double>(step[c]);
  }
  return sum;
}

// Sets `first` and then `second` of a pair to their best levels, the other two to 0: `first` where the pair's own least
// squares put it, `second` where it is best then.
template <class Grid>
void move_pair(const QuadGrid<Grid>& q, const float* g, const float* m, int64_t stride, const float* level, int first,
               int second, Quad& out) {
  float now[4];
  double a = g[first], b = g[second];  // the gradient there, once the others are 0
  for (int c = 0; c < 4; ++c) {
    now[c] = q.weight(c, level[c]);
    if (c == first || c == second) continue;
    out.level[c] = q.zero[c];
    out.step[c] = (out.level[c] - level[c]) * q.scale[c];
    a += static_cast<double>(m[first * stride + c]) * static_cast<double>(out.step[c]);
    b += static_cast<double>(m[second * stride + c]) * static_cast<double>(out.step[c]);
  }
  const double aa = m[first * stride + first], bb = m[second * stride + second], ab = m[first * stride + second];
  const double determinant = aa * bb - ab * ab;
  const double move = determinant > 0 ? (b * ab - a * bb) / determinant : -a / aa;
  out.level[first] = q.round(first, now[first] + static_cast<float>(move));
  out.step[first] = (out.level[first] - level[first]) * q.scale[first];
  b += ab * static_cast<double>(out.step[first]);
  out.level[second] = q.round(second, now[second] - static_cast<float>(b / bb));
  out.step[second] = (out.level[second] - level[second]) * q.scale[second];
  out.pair = static_cast<uint8_t>(1 << first | 1 << second);
}

template <class Grid>
Quad best_walk(const QuadGrid<Grid>& q, const float* x, const float* u, int64_t stride, uint8_t given) {
  Quad best, tried;
  float least = walk_quad(q, x, u, stride, given != 0 ? given : kPair[0], best);
  if (given != 0) return best;
  for (int p = 1; p < kPairs; ++p) {
    const float loss = walk_quad(q, x, u, stride, kPair[p], tried);
    if (loss < least) least = loss, best = tried;
  }
  return best;
}

// Stays as it is unless another choice lowers the sum: so sweeps never raise it and end.
template <class Grid>
Quad best_move(const QuadGrid<Grid>& q, const float* g, const float* m, int64_t stride, const float* level,
               uint8_t pair, bool fixed) {
  Quad best{{level[0], level[1], level[2], level[3]}, {}, pair}, tried;
  double least = 0;
  for (int p = 0; p < kPairs; ++p) {
    if (fixed && kPair[p] != pair) continue;
    const int first = __builtin_ctz(kPair[p]), second = 31 - __builtin_clz(static_cast<unsigned>(kPair[p]));
    for (int turn = 0; turn < 2; ++turn) {
      move_pair(q, g, m, stride, level, turn ? second : first, turn ? first : second, tried);
      const double change = quad_change(g, m, stride, tried.step);
      if (change < least) least = change, best = tried;
    }
  }
  return best;
}

template <class Grid, bool kDescend>
void run_sparse(const Grid& grid, const BlockArgs& a, int64_t row_begin, int64_t row_end) {
  const int64_t width = a.last - a.first;
  alignas(64) float x[kBlock];
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t from = row * a.k + a.first;
    std::memcpy(x, a.w + from, sizeof(float) * static_cast<size_t>(width));
    for (int64_t j = 0; j < width; j += 4) {
      const float* line = a.matrix + (a.first + j) * a.k + a.first;
      const QuadGrid<Grid> q(grid, a, row, a.first + j);
      float *level = a.level + from + j, *keep = a.keep + from + j;
      Quad best;
      uint8_t pair = 0;
      if (kDescend || a.fixed)
        for (int c = 0; c < 4; ++c) pair = static_cast<uint8_t>(pair | (keep[c] != 0.0f) << c);
      if constexpr (kDescend) {
        best = best_move(q, x + j, line + j, a.k, level, pair, a.fixed);
      } else {
        best = best_walk(q, x + j, line + j, a.k, pair);
      }
      for (int c = 0; c < 4; ++c) {
        level[c] = best.level[c];
        keep[c] = static_cast<float>(best.pair >> c & 1);
        a.delta[row * kBlock + j + c] = best.step[c];
        if (best.step[c] == 0.0f) continue;
        const float s = kDescend ? best.step[c] : -best.step[c];
        const float* factor = line + c * a.k;
        for (int64_t i = j + 4; i < width; ++i) x[i] = std::fma(s, factor[i], x[i]);
      }
    }
    for (int64_t j = width; j < kBlock; ++j) a.delta[row * kBlock + j] = 0.0f;
  }
}

void prune(const BlockArgs& a, int64_t row_begin, int64_t row_end) {
  run_sparse<PlainGrid, false>(PlainGrid{}, a, row_begin, row_end);
}

void sparse_solve(const BlockArgs& a, int64_t row_begin, int64_t row_end) {
  with_grid(*a.type,
            [&](const auto& grid) { run_sparse<std::decay_t<decltype(grid)>, false>(grid, a, row_begin, row_end); });
}

void sparse_descend(const BlockArgs& a, int64_t row_begin, int64_t row_end) {
  with_grid(*a.type,
            [&](const auto& grid) { run_sparse<std::decay_t<decltype(grid)>, true>(grid, a, row_begin, row_end); });
}
