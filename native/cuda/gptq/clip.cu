// The clip search: for every row and group the scale, among the candidates, that minimises e M_gg e^T.
//
// The residuals e of 16 rows and one candidate are made in registers as the A operand of m16n8k16, in f16; the group's
// diagonal block of the metric is the B operand, in f16 scaled by a power of two; the accumulators meet e again in the
// same registers. As the block is symmetric, only tiles on and above its diagonal are multiplied, those above twice.
// Costs are thus those of a metric and of residuals rounded to 11 bits, about 2^-12 relative each at random: a
// candidate is chosen whose cost exceeds the least by a few 1e-4 of it at most.
#include "cuda/gptq/clip.h"
#include "cuda/gptq/common.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/quant/number.cuh"

namespace lpq::cuda {
namespace {

__host__ __device__ constexpr int triangle(int p) { return p * (p + 1) / 2; }

// The nearest scale that the stored type can hold, where it is coarse.
__device__ float usable_scale(const ClipArgs& a, float scale) {
  if (a.scale_kind == 0) return scale;
  uint8_t stored[1];
  return write_number(a.scale_kind == 1 ? kNumberE8m0 : kNumberE4m3, stored, 0,
                      fmaxf(__fdiv_rn(scale, a.scale_unit), a.least_scale)) *
         a.scale_unit;
}

// Candidate i of a group with extremes lo <= hi (cpu/gptq/clip.cpp, the same arithmetic).
__device__ void candidate(const ClipArgs& a, int i, float lo, float hi, float& scale, float& zero) {
  const bool negative = i >= a.steps;
  const double p = (1.0 - (negative ? i - a.steps : i) * a.shrink) * (a.scale_kind == 1 ? 1.4142 : 1.0);
  const float low = a.low, high = a.high;
  if (lo == 0 && hi == 0) {
    // Where no code is 0, the least scale that every stored type holds.
    const bool no_zero = a.symmetric && a.constant_zero != floorf(a.constant_zero);
    scale = usable_scale(a, !no_zero ? 1.0f : a.scale_kind != 0 ? 0.0f : 0x1p-14f);
    zero = a.symmetric ? a.constant_zero : fmaxf(low, 0.0f);
    return;
  }
  if (a.symmetric) {
    const float most = fmaxf(fabsf(lo), fabsf(hi));
    const double reach = a.constant_zero != 0.0f || low != -high ? 0.5 * (high - low) : high;
    scale = static_cast<float>(p * most / reach);
    zero = a.constant_zero;
  } else {
    lo = fminf(lo, 0.0f);
    hi = fmaxf(hi, 0.0f);
    scale = static_cast<float>(p * (static_cast<double>(hi) - lo) / (high - low));
    zero = 0;
  }
  scale = usable_scale(a, scale);
  if (!a.symmetric) {
    const double z = low + rint(-p * lo / scale);
    zero = static_cast<float>(fmin(fmax(z, static_cast<double>(low)), static_cast<double>(high)));
  }
  if (negative) scale = -scale;
}

constexpr float kRint = 12582912.0f;  // 1.5 * 2^23

// a / b with y = 1 / b at hand. The correction matters: at p = 1 a symmetric group's largest weight lies on a tie, and
// the side it falls to moves the cost by more than neighbouring candidates differ.
__device__ __forceinline__ float divide(float a, float b, float y) {
  const float q = a * y;
  return __fmaf_rn(__fmaf_rn(-q, b, a), y, q);
}

// e^T B e for the 16 rows of a warp, partial sums of one lane for its rows g and g + 8.
template <int kTiles>
__device__ __forceinline__ void quadratic(const uint32_t (&e)[kTiles][4], const uint32_t (&f)[kTiles][4],
                                          const uint4* fragments, int lane, float (&sum)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] = 0;
#pragma unroll
  for (int p = 0; p < kTiles; ++p) {
    float first[2][4] = {}, second[2][4] = {};
#pragma unroll
    for (int i = 0; i <= p; ++i) {
      const uint4 b = fragments[(triangle(p) + i) * 32 + lane];
      mma_m16n8k16<false>(first[0], e[i], b.x, b.y);
      mma_m16n8k16<false>(first[1], e[i], b.z, b.w);
      mma_m16n8k16<false>(second[0], f[i], b.x, b.y);
      mma_m16n8k16<false>(second[1], f[i], b.z, b.w);
    }
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const float2 e0 = unpack_half2(e[p][2 * q]), e1 = unpack_half2(e[p][2 * q + 1]);
      const float2 f0 = unpack_half2(f[p][2 * q]), f1 = unpack_half2(f[p][2 * q + 1]);
      sum[0] = __fmaf_rn(first[q][0], e0.x, __fmaf_rn(first[q][1], e0.y, sum[0]));
      sum[1] = __fmaf_rn(first[q][2], e1.x, __fmaf_rn(first[q][3], e1.y, sum[1]));
      sum[2] = __fmaf_rn(second[q][0], f0.x, __fmaf_rn(second[q][1], f0.y, sum[2]));
      sum[3] = __fmaf_rn(second[q][2], f1.x, __fmaf_rn(second[q][3], f1.y, sum[3]));
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
    sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
  }
}

// What two rows of a warp's sixteen are multiplied by: powers of two that bring weights near 2^8, where f16 is precise.
struct Lift {
  float a, b;
};

// Errors of a scale of each row, and of its negative, which one rounding serves.
template <int kTiles>
__device__ __forceinline__ void signed_errors(const float (&w)[kTiles][8], float sa, float sb, float low, float high,
                                              uint32_t (&e)[kTiles][4], uint32_t (&f)[kTiles][4]) {
  const float ia = __frcp_rn(sa), ib = __frcp_rn(sb);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const float s = v & 1 ? sb : sa, inverse = v & 1 ? ib : ia;
      const float x = w[tile][2 * v], y = w[tile][2 * v + 1];
      const float rx = divide(x, s, inverse) + kRint - kRint, ry = divide(y, s, inverse) + kRint - kRint;
      e[tile][v] =
          pack_half2(__fmaf_rn(fminf(fmaxf(rx, low), high), s, -x), __fmaf_rn(fminf(fmaxf(ry, low), high), s, -y));
      f[tile][v] =
          pack_half2(__fmaf_rn(fminf(fmaxf(rx, -high), -low), s, -x), __fmaf_rn(fminf(fmaxf(ry, -high), -low), s, -y));
    }
}

// Errors of a scale and a zero of each row.
template <int kTiles, bool kFloats>
__device__ __forceinline__ void errors(const DeviceGrid<kFloats>& grid, const float (&w)[kTiles][8], float sa, float sb,
                                       float za, float zb, uint32_t (&e)[kTiles][4]) {
  const float ia = __frcp_rn(sa), ib = __frcp_rn(sb);
  const GridStep step_a = grid.step(sa, za), step_b = grid.step(sb, zb);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const GridStep& step = v & 1 ? step_b : step_a;
      const float s = v & 1 ? sb : sa, inverse = v & 1 ? ib : ia, z = v & 1 ? zb : za;
      const float x = w[tile][2 * v], y = w[tile][2 * v + 1];
      const float ex = __fmaf_rn(grid.nearest_quotient(divide(x, s, inverse), step) - z, s, -x);
      const float ey = __fmaf_rn(grid.nearest_quotient(divide(y, s, inverse), step) - z, s, -y);
      e[tile][v] = pack_half2(ex, ey);
    }
}

// A piece of both rows as the A operand: row g columns 2t, 2t+1; row g+8; the same 8 columns on.
template <int kTiles>
__device__ __forceinline__ void load_piece(const float* ta, const float* tb, int first, Lift lift, int t,
                                           float (&w)[kTiles][8]) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int j = first + 16 * i + 8 * half + 2 * t;
      const float2 va = *reinterpret_cast<const float2*>(ta + j), vb = *reinterpret_cast<const float2*>(tb + j);
      w[i][4 * half] = va.x * lift.a, w[i][4 * half + 1] = va.y * lift.a;
      w[i][4 * half + 2] = vb.x * lift.b, w[i][4 * half + 3] = vb.y * lift.b;
    }
}

// kMode 0: symmetric integers with a whole zero, both signs: one rounding serves a scale and its negative.
// 1: any integer grid, 2: any float grid; two candidates at a time.
template <int kTiles, int kMode>
__device__ __forceinline__ void clip_body(const ClipArgs& a) {
  constexpr int kPiece = 16 * kTiles, kWords = triangle(kTiles) * 32;
  extern __shared__ float4 shared[];
  uint4* fragments = reinterpret_cast<uint4*>(shared);
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int rows_of_table = kMode == 0 ? a.steps : a.candidates;
  const int table = rows_of_table * 16 * (kMode == 0 ? 1 : 2) + (a.pieces > 1 ? a.candidates * 16 : 0);
  float* scales = reinterpret_cast<float*>(fragments + kWords) + warp * table;  // [candidate][16 rows]
  float* zeros = kMode == 0 ? nullptr : scales + rows_of_table * 16;
  float* costs = scales + rows_of_table * 16 * (kMode == 0 ? 1 : 2);
  const int group = blockIdx.y;
  const int row0 = (blockIdx.x * warps + warp) * 16;
  const int row_a = min(row0 + g, a.n - 1), row_b = min(row0 + g + 8, a.n - 1);
  const int64_t base = static_cast<int64_t>(group) * a.pieces * kPiece;
  const float *ta = a.t + static_cast<int64_t>(row_a) * a.columns + base,
              *tb = a.t + static_cast<int64_t>(row_b) * a.columns + base;

  // The extremes of both rows; the zeros that fill a group up change none of the candidates.
  float lo_a = 0, hi_a = 0, lo_b = 0, hi_b = 0;
  for (int j = 2 * t; j < a.pieces * kPiece; j += 8) {
    const float2 va = *reinterpret_cast<const float2*>(ta + j), vb = *reinterpret_cast<const float2*>(tb + j);
    lo_a = fminf(lo_a, fminf(va.x, va.y)), hi_a = fmaxf(hi_a, fmaxf(va.x, va.y));
    lo_b = fminf(lo_b, fminf(vb.x, vb.y)), hi_b = fmaxf(hi_b, fmaxf(vb.x, vb.y));
  }
#pragma unroll
  for (int mask = 1; mask < 4; mask *= 2) {
    lo_a = fminf(lo_a, __shfl_xor_sync(~0u, lo_a, mask)), hi_a = fmaxf(hi_a, __shfl_xor_sync(~0u, hi_a, mask));
    lo_b = fminf(lo_b, __shfl_xor_sync(~0u, lo_b, mask)), hi_b = fmaxf(hi_b, __shfl_xor_sync(~0u, hi_b, mask));
  }
  const float most_a = fmaxf(-lo_a, hi_a), most_b = fmaxf(-lo_b, hi_b);
  const Lift lift{most_a > 0 ? power_of_two(min(7 - exponent_of(most_a), 40)) : 1.0f,
                  most_b > 0 ? power_of_two(min(7 - exponent_of(most_b), 40)) : 1.0f};
  // Lane t of a row's four makes every fourth candidate.
  for (int i = t; i < rows_of_table; i += 4) {
    float scale, zero;
    candidate(a, i, lo_a, hi_a, scale, zero);
    scales[i * 16 + g] = scale;
    if (kMode != 0) zeros[i * 16 + g] = zero;
    candidate(a, i, lo_b, hi_b, scale, zero);
    scales[i * 16 + g + 8] = scale;
    if (kMode != 0) zeros[i * 16 + g + 8] = zero;
  }
  if (a.pieces > 1)
    for (int i = lane; i < a.candidates * 16; i += 32) costs[i] = 0;
  __syncwarp();

  const DeviceGrid<kMode == 2> grid(a.grid);
  const float high = a.grid.high - a.constant_zero, low = a.grid.low - a.constant_zero;
  const float infinity = __int_as_float(0x7f800000);
  // Best so far of the rows g and g + 8: of positive and of negative scales (mode 0), or of all (in [0] and [1]).
  float best_cost[4] = {infinity, infinity, infinity, infinity};
  int best[4] = {0, 0, 0, 0};
  for (int piece = 0; piece < a.pieces; ++piece) {
    __syncthreads();
    const uint4* from =
        reinterpret_cast<const uint4*>(a.fragments) + (static_cast<int64_t>(group) * a.pieces + piece) * kWords;
    for (int i = threadIdx.x; i < kWords; i += blockDim.x) fragments[i] = from[i];
    __syncthreads();
    const float weight = a.weight[group * a.pieces + piece];
    float w[kTiles][8];
    load_piece(ta, tb, piece * kPiece, lift, t, w);
    for (int i = 0; i < rows_of_table; i += kMode == 0 ? 1 : 2) {
      uint32_t e[kTiles][4], f[kTiles][4];
      const int next = kMode == 0 ? i : min(i + 1, rows_of_table - 1);
      if constexpr (kMode == 0) {
        signed_errors(w, scales[i * 16 + g] * lift.a, scales[i * 16 + g + 8] * lift.b, low, high, e, f);
      } else {
#pragma unroll
        for (int which = 0; which < 2; ++which) {
          const int c = (which ? next : i) * 16 + g;
          errors(grid, w, scales[c] * lift.a, scales[c + 8] * lift.b, zeros[c], zeros[c + 8], which ? f : e);
        }
      }
      float sum[4];
      quadratic<kTiles>(e, f, fragments, lane, sum);
      if (a.pieces > 1) {
        if (t == 0) {
          const int second = kMode == 0 ? i + a.steps : next;
          costs[i * 16 + g] += weight * sum[0];
          costs[i * 16 + g + 8] += weight * sum[1];
          if (kMode == 0 || next != i) {
            costs[second * 16 + g] += weight * sum[2];
            costs[second * 16 + g + 8] += weight * sum[3];
          }
        }
      } else {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          const int slot = kMode == 0 ? v : v & 1;
          if (sum[v] < best_cost[slot]) best_cost[slot] = sum[v], best[slot] = v < 2 ? i : next;
        }
      }
    }
  }
  if (a.pieces > 1) {
    __syncwarp();
    if (t == 0)
      for (int r = 0; r < 2; ++r)
        for (int i = 0; i < a.candidates; ++i) {
          const int slot = kMode == 0 && i >= a.steps ? r + 2 : r;
          const float cost = costs[i * 16 + g + 8 * r];
          if (cost < best_cost[slot]) best_cost[slot] = cost, best[slot] = kMode == 0 && i >= a.steps ? i - a.steps : i;
        }
  }
  if (t == 0)
    for (int r = 0; r < 2; ++r) {
      const int row = row0 + g + 8 * r;
      if (row >= a.n) continue;
      const bool negative = kMode == 0 && best_cost[r + 2] < best_cost[r];
      const int i = negative ? best[r + 2] : best[r];
      const float scale = scales[i * 16 + g + 8 * r];
      a.scale[static_cast<int64_t>(row) * a.groups + group] =
          negative ? -scale : scale;  // never in a group of zeros: all cost the same
      a.zero[static_cast<int64_t>(row) * a.groups + group] = kMode == 0 ? a.constant_zero : zeros[i * 16 + g + 8 * r];
    }
}

}  // namespace

// Three blocks a multiprocessor cost mode 0 a few spilled words and win more.
#define LPQ_CLIP_KERNEL(tiles, mode, blocks)                                                             \
  extern "C" __global__ void __launch_bounds__(128, blocks) lpq_gptq_clip_##tiles##_##mode(ClipArgs a) { \
    clip_body<tiles, mode>(a);                                                                           \
  }
#define LPQ_CLIP_KERNELS(tiles) LPQ_CLIP_KERNEL(tiles, 0, 3) LPQ_CLIP_KERNEL(tiles, 1, 2) LPQ_CLIP_KERNEL(tiles, 2, 2)
LPQ_CLIP_KERNELS(1)
LPQ_CLIP_KERNELS(2)
LPQ_CLIP_KERNELS(4)
LPQ_CLIP_KERNELS(8)

// The diagonal block of each piece as B operands, scaled by a power of two so that its largest diagonal entry lies in
// [2^13, 2^14); weight: the inverse of that power. Fragment (p, i <= p): rows 16 i .. of columns 16 p .., twice where i
// < p. One block a piece.
extern "C" __global__ void lpq_gptq_clip_fragments(const float* m, int k, const int32_t* members, int piece,
                                                   uint32_t* fragments, float* weight) {
  __shared__ float shared_most[8];
  const int32_t* mine = members + static_cast<int64_t>(blockIdx.x) * piece;
  float most = 0;
  for (int j = threadIdx.x; j < piece; j += blockDim.x)
    if (mine[j] >= 0) most = fmaxf(most, m[static_cast<int64_t>(mine[j]) * k + mine[j]]);
  for (int mask = 16; mask > 0; mask >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, mask));
  if (threadIdx.x % 32 == 0) shared_most[threadIdx.x / 32] = most;
  __syncthreads();
  for (int w = 0; w < static_cast<int>(blockDim.x / 32); ++w) most = fmaxf(most, shared_most[w]);
  const int e = most > 0 ? 13 - exponent_of(most) : 0;
  if (threadIdx.x == 0) weight[blockIdx.x] = power_of_two(-e);
  const float up = power_of_two(e);
  const int tiles = piece / 16, words = triangle(tiles) * 32 * 4;
  uint32_t* out = fragments + static_cast<int64_t>(blockIdx.x) * words;
  for (int index = threadIdx.x; index < words; index += blockDim.x) {
    const int lane = index / 4 % 32, which = index % 4;
    int p = 0;
    while (triangle(p + 1) <= index / 128) ++p;
    const int i = index / 128 - triangle(p);
    const int column = mine[16 * p + 8 * (which / 2) + lane / 4];
    const int row = 16 * i + 8 * (which % 2) + 2 * (lane % 4);
    float v[2];
    for (int h = 0; h < 2; ++h) {
      const int from = mine[row + h];
      v[h] = from >= 0 && column >= 0 ? m[static_cast<int64_t>(from) * k + column] * up * (i < p ? 2.0f : 1.0f) : 0.0f;
    }
    out[index] = pack_half2(v[0], v[1]);
  }
}

// members[g * room + i] = the i-th column of group g, -1 behind the last. One warp a group (and one a group's worth of
// the padding at the end).
extern "C" __global__ void lpq_gptq_members(const int32_t* group, int k, int groups, int room, int most, int columns,
                                            int32_t* members, uint32_t* fault) {
  const int g = blockIdx.x, lane = threadIdx.x;
  int count = 0;
  if (g < groups)
    for (int j0 = 0; j0 < k; j0 += 32) {
      const bool mine = j0 + lane < k && group[j0 + lane] == g;
      const unsigned ballot = __ballot_sync(~0u, mine);
      const int at = count + __popc(ballot & ((1u << lane) - 1u));
      if (mine && at < most) members[g * room + at] = j0 + lane;
      count += __popc(ballot);
    }
  if (count > most) {
    if (lane == 0) *fault = 1;
    count = most;
  }
  for (int i = count + lane; i < room && g * room + i < columns; i += 32) members[g * room + i] = -1;
}

// out[n][i] = in[n][members[i]], 0 where that is -1; one block a row. staged: the row goes through shared memory.
extern "C" __global__ void lpq_gptq_gather_columns(const float* in, int k, const int32_t* members, int columns,
                                                   float* out, int staged) {
  extern __shared__ float line[];
  const float* row = in + static_cast<int64_t>(blockIdx.x) * k;
  if (staged) {
    for (int j = threadIdx.x; j < k; j += blockDim.x) line[j] = row[j];
    __syncthreads();
    row = line;
  }
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    const int from = members[i];
    out[static_cast<int64_t>(blockIdx.x) * columns + i] = from >= 0 ? row[from] : 0.0f;
  }
}

}  // namespace lpq::cuda
