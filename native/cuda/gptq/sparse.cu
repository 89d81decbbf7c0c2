// 2:4 sparsity: the walk over one block of columns, a warp a row, four columns a lane. The lane whose four is next
// shows it to the others, each of which prices one choice; the cheapest is taken and all lanes behind bring their
// columns up to date. The operations on a row are those of cpu/gptq/sparse_body.h, in their order, so that equal inputs
// give equal codes.
#include "cuda/gptq/sparse.h"

namespace lpq::cuda {
namespace {

constexpr unsigned kAll = 0xffffffffu;
__constant__ int kPairBits[6] = {0b0011, 0b0101, 0b1001, 0b0110, 0b1010, 0b1100};

enum : int { kPrune, kSolve, kDescend };

struct PlainGrid {
  __device__ explicit PlainGrid(const GridSpec&) {}
  __device__ GridStep step(float, float) const { return {}; }
  __device__ float nearest(float w, const GridStep&) const { return w; }
};

template <class Grid>
struct Four {
  float scale[4], zero[4];
  GridStep step[4];
  __device__ float round(const Grid& grid, int c, float w) const { return grid.nearest(w, step[c]); }
  __device__ float weight(int c, float level) const { return __fmul_rn(__fsub_rn(level, zero[c]), scale[c]); }
};

// The price of one pair in the walk: sum of squared scaled errors.
template <class Grid>
__device__ float walk_four(const Grid& grid, const Four<Grid>& four, const float (&x)[4], const float (&u)[4][4],
                           int pair, float (&level)[4], float (&step)[4]) {
  float y[4] = {x[0], x[1], x[2], x[3]}, loss = 0.0f;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const bool kept = (pair >> c & 1) != 0;
    level[c] = kept ? four.round(grid, c, y[c]) : four.zero[c];
    const float what = kept ? four.weight(c, level[c]) : 0.0f;
    step[c] = __fdiv_rn(__fsub_rn(y[c], what), u[c][c]);
    loss = __fmaf_rn(step[c], step[c], loss);
#pragma unroll
    for (int d = c + 1; d < 4; ++d) y[d] = __fmaf_rn(-step[c], u[c][d], y[d]);
  }
  return loss;
}

// The change of (What - T) M (What - T)^T when a pair goes to its best levels, `turn` saying which of the two first,
// and the other two to 0.
template <class Grid>
__device__ double move_four(const Grid& grid, const Four<Grid>& four, const float (&g)[4], const float (&m)[4][4],
                            const float (&now)[4], int pair, int turn, float (&level)[4], float (&step)[4]) {
  const int low = __ffs(pair) - 1, high = 31 - __clz(pair), first = turn ? high : low, second = turn ? low : high;
  double a = 0, b = 0, aa = 1, bb = 1, ab = 0;
  float was_a = 0, was_b = 0;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    if (c == first) a = g[c], aa = m[c][c], was_a = now[c];
    if (c == second) b = g[c], bb = m[c][c], was_b = now[c];
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    if (c == first || c == second) continue;
    level[c] = four.zero[c];
    step[c] = __fmul_rn(__fsub_rn(level[c], now[c]), four.scale[c]);
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      const double product = __dmul_rn(static_cast<double>(m[d][c]), static_cast<double>(step[c]));
      if (d == first) a = __dadd_rn(a, product);
      if (d == second) b = __dadd_rn(b, product);
    }
  }
#pragma unroll
  for (int c = 0; c < 4; ++c)
#pragma unroll
    for (int d = 0; d < 4; ++d)
      if (c == first && d == second) ab = m[c][d];
  const double determinant = __dsub_rn(__dmul_rn(aa, bb), __dmul_rn(ab, ab));
  const double move =
      determinant > 0 ? __ddiv_rn(__dsub_rn(__dmul_rn(b, ab), __dmul_rn(a, bb)), determinant) : __ddiv_rn(-a, aa);
  float moved = 0;
#pragma unroll
  for (int c = 0; c < 4; ++c)
    if (c == first) {
      level[c] = four.round(grid, c, __fadd_rn(four.weight(c, was_a), static_cast<float>(move)));
      step[c] = moved = __fmul_rn(__fsub_rn(level[c], was_a), four.scale[c]);
    }
  b = __dadd_rn(b, __dmul_rn(ab, static_cast<double>(moved)));
#pragma unroll
  for (int c = 0; c < 4; ++c)
    if (c == second) {
      level[c] = four.round(grid, c, __fsub_rn(four.weight(c, was_b), static_cast<float>(__ddiv_rn(b, bb))));
      step[c] = __fmul_rn(__fsub_rn(level[c], was_b), four.scale[c]);
    }
  double sum = 0;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    double line = __dmul_rn(2.0, static_cast<double>(g[c]));
#pragma unroll
    for (int d = 0; d < 4; ++d)
      line = __dadd_rn(line, __dmul_rn(static_cast<double>(m[c][d]), static_cast<double>(step[d])));
    sum = __dadd_rn(sum, __dmul_rn(line, static_cast<double>(step[c])));
  }
  return sum;
}

template <class Grid, int kMode>
__device__ void sparse_body(const SparseArgs& a) {
  const int lane = threadIdx.x % 32, row = blockIdx.x * kSparseWarps + threadIdx.x / 32;
  if (row >= a.n) return;  // all lanes of a warp have one row
  const Grid grid(a.grid);
  const bool mine = 4 * lane < a.width;
  const int64_t at = static_cast<int64_t>(row) * a.k + a.first + 4 * lane;
  float x[4] = {}, scale[4] = {1, 1, 1, 1}, zero[4] = {}, now[4] = {};
  int pair = 0;
  if (mine)
    for (int c = 0; c < 4; ++c) {
      x[c] = a.w[at + c];
      if (a.group) {
        const int64_t g = static_cast<int64_t>(row) * a.groups + a.group[a.first + 4 * lane + c];
        scale[c] = a.scale[g];
        zero[c] = a.zero[g];
      }
      if (kMode == kDescend) now[c] = a.level[at + c];
      if (kMode == kDescend || a.fixed) pair |= (a.keep[at + c] != 0.0f) << c;
    }
  int moved = 0;
  for (int q = 0; q < a.width / 4; ++q) {
    const float* line = a.matrix + static_cast<int64_t>(a.first + 4 * q) * a.k + a.first;
    Four<Grid> four;
    float y[4], was[4], m[4][4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      y[c] = __shfl_sync(kAll, x[c], q);
      was[c] = __shfl_sync(kAll, now[c], q);
      four.scale[c] = __shfl_sync(kAll, scale[c], q);
      four.zero[c] = __shfl_sync(kAll, zero[c], q);
      four.step[c] = grid.step(four.scale[c], four.zero[c]);
      const float4 entries = *reinterpret_cast<const float4*>(line + static_cast<int64_t>(c) * a.k + 4 * q);
      m[c][0] = entries.x, m[c][1] = entries.y, m[c][2] = entries.z, m[c][3] = entries.w;
    }
    const int given = __shfl_sync(kAll, pair, q);
    float level[4], step[4];
    int tried, best = lane;
    bool stays = false;
    if constexpr (kMode == kDescend) {
      tried = kPairBits[lane / 2 % 6];
      double change = move_four(grid, four, y, m, was, tried, lane % 2, level, step);
      // No gain, or no candidate: the four stays as it is.
      if (lane >= 12 || (a.fixed && tried != given) || !(change < 0)) change = 0;
      for (int offset = 16; offset > 0; offset /= 2) {
        const double other = __shfl_xor_sync(kAll, change, offset);
        const int from = __shfl_xor_sync(kAll, best, offset);
        if (other < change || (other == change && from < best)) change = other, best = from;
      }
      stays = !(change < 0);
    } else {
      tried = given != 0 ? given : kPairBits[lane % 6];
      float price = walk_four(grid, four, y, m, tried, level, step);
      if (lane >= 6 || !(price < __int_as_float(0x7f800000))) price = __int_as_float(0x7f800000);
      for (int offset = 16; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(kAll, price, offset);
        const int from = __shfl_xor_sync(kAll, best, offset);
        if (other < price || (other == price && from < best)) price = other, best = from;
      }
    }
    tried = __shfl_sync(kAll, tried, best);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      level[c] = __shfl_sync(kAll, level[c], best);
      step[c] = __shfl_sync(kAll, step[c], best);
      if (stays) level[c] = was[c], step[c] = 0.0f;
    }
    if (stays) tried = given;
    if (lane == q)
      for (int c = 0; c < 4; ++c) {
        a.level[at + c] = level[c];
        a.keep[at + c] = static_cast<float>(tried >> c & 1);
        a.delta[static_cast<int64_t>(row) * kSparseBlock + 4 * lane + c] = step[c];
        moved += step[c] != 0.0f;
      }
    if (mine && lane > q)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float s = kMode == kDescend ? step[c] : -step[c];
        if (s == 0.0f) continue;
        const float4 f = *reinterpret_cast<const float4*>(line + static_cast<int64_t>(c) * a.k + 4 * lane);
        x[0] = __fmaf_rn(s, f.x, x[0]), x[1] = __fmaf_rn(s, f.y, x[1]), x[2] = __fmaf_rn(s, f.z, x[2]),
        x[3] = __fmaf_rn(s, f.w, x[3]);
      }
  }
  if (kMode == kDescend) {
    for (int offset = 16; offset > 0; offset /= 2) moved += __shfl_xor_sync(kAll, moved, offset);
    if (lane == 0 && moved > 0) atomicAdd(a.moved, static_cast<unsigned long long>(moved));
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(32 * kSparseWarps) lpq_gptq_prune(SparseArgs a) {
  sparse_body<PlainGrid, kPrune>(a);
}
extern "C" __global__ void __launch_bounds__(32 * kSparseWarps) lpq_gptq_sparse_solve_int(SparseArgs a) {
  sparse_body<DeviceGrid<false>, kSolve>(a);
}
extern "C" __global__ void __launch_bounds__(32 * kSparseWarps) lpq_gptq_sparse_solve_float(SparseArgs a) {
  sparse_body<DeviceGrid<true>, kSolve>(a);
}
extern "C" __global__ void __launch_bounds__(32 * kSparseWarps) lpq_gptq_sparse_descend_int(SparseArgs a) {
  sparse_body<DeviceGrid<false>, kDescend>(a);
}
extern "C" __global__ void __launch_bounds__(32 * kSparseWarps) lpq_gptq_sparse_descend_float(SparseArgs a) {
  sparse_body<DeviceGrid<true>, kDescend>(a);
}

// What - T, f32 [n, k]; a block a row.
extern "C" __global__ void lpq_gptq_plain_error(const float* level, const float* t, const float* scale,
                                                const float* zero, const int32_t* group, int groups, int k,
                                                float* error) {
  const int64_t row = blockIdx.x;
  for (int j = threadIdx.x; j < k; j += blockDim.x) {
    const int64_t at = row * k + j, g = row * groups + group[j];
    error[at] = __fsub_rn(__fmul_rn(__fsub_rn(level[at], zero[g]), scale[g]), t[at]);
  }
}

}  // namespace lpq::cuda
