// The walk over one block of 128 columns, for every row at once; and the operands of the products between blocks.
#include "cuda/gptq/block.h"
#include "cuda/gptq/common.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/global_memory.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {
namespace {

constexpr int kChunk = 16;       // columns that one step of the walk takes: the depth of a tensor core product
constexpr int kHalf = 8;         // of them in flight from memory
constexpr int kPitch = 20;       // floats a row of a chunk
constexpr int kPlanePitch = 24;  // halves a row of a chunk's planes

// a / b with y = 1 / b at hand: one correction by the exact remainder. It is the correctly rounded quotient but for
// about one case in 10^7, and always where the quotient is a float, ties among them.
__device__ __forceinline__ float divide(float a, float b, float y) {
  const float q = a * y;
  return __fmaf_rn(__fmaf_rn(-q, b, a), y, q);
}

__device__ __forceinline__ void store4(uint16_t* p, const uint16_t (&v)[4], int count, bool aligned) {
  if (aligned && count >= 4) {
    *reinterpret_cast<uint2*>(p) =
        make_uint2(v[0] | static_cast<uint32_t>(v[1]) << 16, v[2] | static_cast<uint32_t>(v[3]) << 16);
    return;
  }
  for (int i = 0; i < 4; ++i)
    if (i < count) p[i] = v[i];
}

// Eight neighbours of a row, and where they go; `whole`: all of them are there and lie on 16 bytes.
__device__ __forceinline__ void load8(float (&v)[kHalf], const float* p, int count, bool whole) {
  if (whole) {
    *reinterpret_cast<float4*>(v) = reinterpret_cast<const float4*>(p)[0];
    *reinterpret_cast<float4*>(v + 4) = reinterpret_cast<const float4*>(p)[1];
    return;
  }
#pragma unroll
  for (int i = 0; i < kHalf; ++i) v[i] = i < count ? p[i] : 0.0f;
}
__device__ __forceinline__ void store8(float* p, const float (&v)[kHalf], int count, bool whole) {
  if (whole) {
    reinterpret_cast<float4*>(p)[0] = *reinterpret_cast<const float4*>(v);
    reinterpret_cast<float4*>(p)[1] = *reinterpret_cast<const float4*>(v + 4);
    return;
  }
#pragma unroll
  for (int i = 0; i < kHalf; ++i)
    if (i < count) p[i] = v[i];
}
__device__ __forceinline__ void store8(uint16_t* p, uint4 v, int count, bool whole) {
  if (whole) {
    *reinterpret_cast<uint4*>(p) = v;
    return;
  }
  const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < kHalf; ++i)
    if (i < count) p[i] = static_cast<uint16_t>(word[i / 2] >> (i % 2 * 16));
}

template <bool kHalves>
__device__ __forceinline__ void split_pair(float a, float b, uint32_t& hi, uint32_t& lo) {
  if constexpr (kHalves) {
    a = fminf(fmaxf(a, -65504.0f), 65504.0f), b = fminf(fmaxf(b, -65504.0f), 65504.0f);
    hi = pack_half2(a, b);
    const float2 kept = unpack_half2(hi);
    lo = pack_half2(__fsub_rn(a, kept.x), __fsub_rn(b, kept.y));
  } else {
    const __nv_bfloat162 kept = __floats2bfloat162_rn(a, b);
    hi = *reinterpret_cast<const uint32_t*>(&kept);
    const __nv_bfloat162 rest =
        __floats2bfloat162_rn(__fsub_rn(a, __uint_as_float(hi << 16)), __fsub_rn(b, __uint_as_float(hi & 0xffff0000u)));
    lo = *reinterpret_cast<const uint32_t*>(&rest);
  }
}

// Tiles of 16 x 8 behind the diagonal of a block that belong to the chunks before `chunk`.
__device__ __forceinline__ int tiles_before(int chunk) { return chunk * (15 - chunk); }

enum : int { kWholeZeros, kAnyZeros, kFloats };  // grids: integers whose zeros are whole numbers, any integers, floats

// What the blocks of the matrix are in shared memory, and a warp's part of it.
struct BlockShared {
  const uint4* fragments;          // [kBlockTiles][32]
  const float* diagonal;           // [8][16][16]
  const float *inverse, *upscale;  // [128] each
  float* x;                        // of the warp: [kRows][kPitch]
  uint16_t* planes;                // of the warp: [2][kRows][kPlanePitch]
  __device__ __forceinline__ BlockShared(uint4* shared, int warp, int rows) {
    fragments = shared;
    diagonal = reinterpret_cast<const float*>(fragments + kBlockTiles * 32);
    inverse = diagonal + kBlockColumns * kChunk;
    upscale = inverse + kBlockColumns;
    x = const_cast<float*>(upscale) + kBlockColumns + warp * rows * (kPitch + kPlanePitch);
    planes = reinterpret_cast<uint16_t*>(x + rows * kPitch);
  }
};

// A thread's row: where it lies, and what of the half chunk to come is under way.
template <bool kDescend, bool kFull>
struct BlockRow {
  int row;
  float down, up;  // descend: powers of two of the row
  const float *scale_t, *zero_t, *t;
  float* level;
  uint16_t *hi, *lo;
  float next_scale[kHalf], next_zero[kHalf], next_level[kHalf], next_t[kHalf];
  __device__ __forceinline__ BlockRow(const BlockArgs& a, int row) : row(row) {
    const int shift = kDescend ? a.row_exponent[row] : 0;
    down = power_of_two(-shift), up = power_of_two(shift);
    scale_t = a.scale_t + row, zero_t = a.zero_t + row;
    level = a.level + static_cast<int64_t>(row) * a.k + a.first;
    t = kDescend ? a.t + static_cast<int64_t>(row) * a.k + a.first : nullptr;
    hi = a.hi + static_cast<int64_t>(row) * a.k + a.first,
    lo = a.lo ? a.lo + static_cast<int64_t>(row) * a.k + a.first : nullptr;
  }
  __device__ __forceinline__ void prefetch(const BlockArgs& a, const int* group_of, int c) {
    const int count = a.width - c;
#pragma unroll
    for (int j = 0; j < kHalf; ++j) {
      const int64_t at = static_cast<int64_t>(group_of[min(c, kBlockColumns - kHalf) + j]) * a.n;
      next_scale[j] = scale_t[at];
      next_zero[j] = zero_t[at];
    }
    if constexpr (kDescend) {
      if (kFull && count <= 0) return;
      load8(next_level, level + c, count, kFull);
      load8(next_t, t + c, count, kFull);
    }
  }
  // Levels and the operands of the products outside: solve's are its steps, descend's what its goals are off by.
  __device__ __forceinline__ void store(const BlockArgs& a, int c, const float (&levels)[kHalf], float (&goal)[kHalf],
                                        uint4 high, uint4 low) const {
    const int count = a.width - c;
    store8(level + c, levels, count, kFull);
    if constexpr (kDescend) {
      const int64_t delta_at = static_cast<int64_t>(row) * a.ldd + c;
      store8(a.delta_hi + delta_at, high, count, kFull);
      if (a.delta_lo) store8(a.delta_lo + delta_at, low, count, kFull);
      uint32_t upper[4], rest[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        goal[2 * j] = fminf(fmaxf(goal[2 * j], -65504.0f), 65504.0f),
                 goal[2 * j + 1] = fminf(fmaxf(goal[2 * j + 1], -65504.0f), 65504.0f);
        upper[j] = pack_half2(goal[2 * j], goal[2 * j + 1]);
      }
      store8(hi + c, make_uint4(upper[0], upper[1], upper[2], upper[3]), count, kFull);
      if (lo) {
#pragma unroll
        for (int j = 0; j < 4; ++j) split_pair<true>(goal[2 * j], goal[2 * j + 1], upper[j], rest[j]);
        store8(lo + c, make_uint4(rest[0], rest[1], rest[2], rest[3]), count, kFull);
      }
    } else {
      store8(hi + c, high, count, kFull);
      if (lo) store8(lo + c, low, count, kFull);
    }
  }
};

// Half a chunk from column c on, one column after the other: steps, levels, and for descend goals.
template <int kGrid, bool kDescend, bool kFull>
__device__ __forceinline__ void walk_half(const BlockArgs& a, const BlockShared& shared,
                                          const DeviceGrid<kGrid == kFloats>& grid,
                                          const BlockRow<kDescend, kFull>& row, int c, int half,
                                          const float (&scale)[kHalf], const float (&zero)[kHalf],
                                          const float (&before)[kHalf], float (&x)[kChunk], float (&goal)[kHalf],
                                          float (&level)[kHalf], float (&step)[kHalf], int& moved) {
#pragma unroll
  for (int j = 0; j < kHalf; ++j) {
    float line[kChunk];  // from the diagonal on
#pragma unroll
    for (int i = (half + j) / 4 * 4; i < kChunk; i += 4)
      *reinterpret_cast<float4*>(line + i) = *reinterpret_cast<const float4*>(shared.diagonal + (c + j) * kChunk + i);
    // Without the branch for subnormal numbers that __frcp_rn takes; such scales do not occur.
    const float inverse_scale = rcp_approx(scale[j]);
    const float factor = kDescend ? shared.upscale[c + j] * row.up : 1.0f;
    const float quotient = kDescend
                               ? __fmaf_rn(-x[half + j], shared.inverse[c + j] * row.down * inverse_scale, before[j])
                               : divide(x[half + j], scale[j], inverse_scale);
    float after;  // level - zero
    if constexpr (kGrid == kWholeZeros) {
      constexpr float kRint = 12582912.0f;
      after = fminf(fmaxf(quotient, a.grid.low - zero[j]), a.grid.high - zero[j]) + kRint - kRint;
      level[j] = after + zero[j];
    } else {
      level[j] = grid.nearest_quotient(quotient, grid.step(scale[j], zero[j]));
      after = level[j] - zero[j];
    }
    // Errors of solve, changes of descend; the matrix of solve is there with its sign turned.
    step[j] = kDescend ? (after - before[j]) * (scale[j] * factor)
                       : divide(x[half + j] - after * scale[j], -line[half + j], shared.inverse[c + j]);
    if (!kFull && j >= a.width - c) step[j] = 0;
    if constexpr (kDescend) {
      moved += step[j] != 0.0f;
      goal[j] = (after * scale[j] - goal[j]) * factor;
    }
#pragma unroll
    for (int i = half + j + 1; i < kChunk; ++i) x[i] = __fmaf_rn(step[j], line[i], x[i]);
  }
}

// A chunk's steps, which lie in shared memory as two planes, into the columns behind it; those move to the front.
template <bool kDescend, int kTiles>
__device__ __forceinline__ void update_behind(const BlockShared& shared, int chunk, int lane,
                                              float (&acc)[kTiles][kBlockColumns / 8][4]) {
  constexpr int kRows = 16 * kTiles;
  const int g = lane / 4, t = lane % 4;
  uint32_t hi[kTiles][4], lo[kTiles][4];
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const int at = (16 * m + 8 * (v & 1) + g) * kPlanePitch + 2 * t + 8 * (v >> 1);
      hi[m][v] = *reinterpret_cast<const uint32_t*>(shared.planes + at);
      lo[m][v] = *reinterpret_cast<const uint32_t*>(shared.planes + kRows * kPlanePitch + at);
    }
  const int behind = kBlockColumns / 8 - 2 * (chunk + 1);
  const uint4* tile = shared.fragments + tiles_before(chunk) * 32 + lane;
#pragma unroll
  for (int q = 0; q < kBlockColumns / 8 - 2; ++q) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int v = 0; v < 4; ++v) acc[m][q][v] = acc[m][q + 2][v];
  }
  // Four tiles at a time, so that no product waits for the one before. Those behind the last one meet other operands
  // and are never looked at again.
#pragma unroll
  for (int q0 = 0; q0 < kBlockColumns / 8 - 2; q0 += 4) {
    if (q0 >= behind) break;
    constexpr int kLast = kBlockColumns / 8 - 3;
    uint4 b[4];
#pragma unroll
    for (int q = 0; q < 4; ++q) b[q] = tile[min(q0 + q, behind - 1) * 32];
#pragma unroll
    for (int product = 0; product < 3; ++product)
#pragma unroll
      for (int q = 0; q < 4; ++q)
#pragma unroll
        for (int m = 0; m < kTiles; ++m)
          if (q0 + q <= kLast)
            mma_m16n8k16<!kDescend>(acc[m][q0 + q], product == 0 ? lo[m] : hi[m], product == 1 ? b[q].z : b[q].x,
                                    product == 1 ? b[q].w : b[q].y);
  }
}

// A warp takes 16 kTiles rows. What is left of their columns stays in registers as accumulators of the tensor cores: a
// chunk of 16 columns leaves them through shared memory, one thread a row walks it in fp32 (with 16 rows both halves of
// the warp walk the same), and its steps come back as two 16-bit planes that bring the columns behind up to date.
// Units: solve's are true ones, in bf16; descend's are the scaled ones of block.h, in f16, those of the products
// outside.
// kFull: 128 columns whose rows lie on 16 bytes.
template <int kGrid, bool kDescend, int kTiles, int kWarps, bool kFull>
__device__ __forceinline__ void block_body(const BlockArgs& a) {
  constexpr int kRows = 16 * kTiles;
  extern __shared__ uint4 shared_words[];
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
  const BlockShared shared(shared_words, warp, kRows);
  __shared__ int group_of[kBlockColumns];
  const DeviceGrid<kGrid == kFloats> grid(a.grid);

  const uint4* from = a.blocks + static_cast<int64_t>(a.first / kBlockColumns) * kBlockWords;
  for (int i = tid; i < kBlockWords; i += 32 * kWarps) cp_async_16(shared_address(shared_words + i), from + i);
  cp_async_commit();
  for (int j = tid; j < kBlockColumns; j += 32 * kWarps) group_of[j] = j < a.width ? a.group[a.first + j] : 0;
  const int row0 = (blockIdx.x * kWarps + warp) * kRows;
  float acc[kTiles][kBlockColumns / 8][4];
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float* line = a.x + static_cast<int64_t>(min(row0 + 16 * m + 8 * h + g, a.n - 1)) * a.ldx + 2 * t;
#pragma unroll
      for (int q = 0; q < kBlockColumns / 8; ++q) {
        // Behind the width lies what an earlier block left: its columns take no steps, and nothing is behind them.
        const float2 v = *reinterpret_cast<const float2*>(line + 8 * q);
        acc[m][q][2 * h] = v.x, acc[m][q][2 * h + 1] = v.y;
      }
    }
  const int own = lane % kRows;
  const bool writes = lane < kRows && row0 + own < a.n;
  BlockRow<kDescend, kFull> row(a, min(row0 + own, a.n - 1));
  if constexpr (kDescend && kFull)
    if (lane < kRows)
#pragma unroll
      for (int j = 0; j < kBlockColumns; j += 32) prefetch_l2(row.level + j), prefetch_l2(row.t + j);
  int moved = 0;
  cp_async_wait<0>();
  __syncthreads();
  row.prefetch(a, group_of, 0);
#pragma unroll 1
  for (int chunk = 0; chunk * kChunk < a.width; ++chunk) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int q = 0; q < 2; ++q)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          *reinterpret_cast<float2*>(shared.x + (16 * m + 8 * h + g) * kPitch + 8 * q + 2 * t) =
              make_float2(acc[m][q][2 * h], acc[m][q][2 * h + 1]);
    __syncwarp();
    float x[kChunk];
#pragma unroll
    for (int j = 0; j < kChunk; j += 4)
      *reinterpret_cast<float4*>(x + j) = *reinterpret_cast<const float4*>(shared.x + own * kPitch + j);
#pragma unroll
    for (int half = 0; half < kChunk; half += kHalf) {
      const int c = chunk * kChunk + half;
      float scale[kHalf], zero[kHalf], before[kHalf], goal[kHalf], level[kHalf], step[kHalf];
#pragma unroll
      for (int j = 0; j < kHalf; ++j) {
        scale[j] = row.next_scale[j], zero[j] = row.next_zero[j];
        if constexpr (kDescend) before[j] = row.next_level[j] - zero[j], goal[j] = row.next_t[j];
      }
      row.prefetch(a, group_of, c + kHalf);
      __syncwarp();  // with 16 rows a warp, before the other half's levels are stored
      walk_half<kGrid>(a, shared, grid, row, c, half, scale, zero, before, x, goal, level, step, moved);
      uint32_t hi[4], lo[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) split_pair<kDescend>(step[2 * j], step[2 * j + 1], hi[j], lo[j]);
      const uint4 high = make_uint4(hi[0], hi[1], hi[2], hi[3]), low = make_uint4(lo[0], lo[1], lo[2], lo[3]);
      if (lane < kRows) {
        *reinterpret_cast<uint4*>(shared.planes + own * kPlanePitch + half) = high;
        *reinterpret_cast<uint4*>(shared.planes + (kRows + own) * kPlanePitch + half) = low;
      }
      if (writes) row.store(a, c, level, goal, high, low);
    }
    __syncwarp();
    update_behind<kDescend>(shared, chunk, lane, acc);
  }
  if constexpr (kDescend) {
    if (!writes) moved = 0;
    for (int mask = 16; mask > 0; mask >>= 1) moved += __shfl_xor_sync(~0u, moved, mask);
    if (lane == 0 && moved) atomicAdd(a.moved, static_cast<unsigned long long>(moved));  // whole numbers: any order
  }
}

// What the walk needs of diagonal block blockIdx.x, as it lies in shared memory (block.h).
template <bool kDescend>
__device__ __forceinline__ void block_operands(const float* matrix, int k, const int32_t* column_exponent,
                                               uint4* blocks) {
  const int first = blockIdx.x * kBlockColumns;
  uint4* out = blocks + static_cast<int64_t>(blockIdx.x) * kBlockWords;
  const auto entry = [&](int i, int j) {
    if (first + i >= k || first + j >= k) return i == j ? (kDescend ? 1.0f : -1.0f) : 0.0f;
    const float v = matrix[static_cast<int64_t>(first + i) * k + first + j];
    return kDescend
               ? v * power_of_two(kMetricShift - column_exponent[first + i]) * power_of_two(-column_exponent[first + j])
               : -v;
  };
  for (int index = threadIdx.x; index < kBlockTiles * 32; index += blockDim.x) {
    const int lane = index % 32, tile = index / 32;
    int chunk = 0;
    while (tiles_before(chunk + 1) <= tile) ++chunk;
    const int row = chunk * kChunk + 2 * (lane % 4),
              column = 8 * (tile - tiles_before(chunk) + 2 * (chunk + 1)) + lane / 4;
    uint4 b;
    split_pair<kDescend>(entry(row, column), entry(row + 1, column), b.x, b.z);
    split_pair<kDescend>(entry(row + 8, column), entry(row + 9, column), b.y, b.w);
    out[index] = b;
  }
  float* diagonal = reinterpret_cast<float*>(out + kBlockTiles * 32);
  for (int index = threadIdx.x; index < kBlockColumns * kChunk; index += blockDim.x) {
    const int row = index / kChunk;
    diagonal[index] = entry(row, row / kChunk * kChunk + index % kChunk);
  }
  float* inverse_of = diagonal + kBlockColumns * kChunk;
  for (int j = threadIdx.x; j < kBlockColumns; j += blockDim.x) {
    const float d = entry(j, j);
    const int e = kDescend && first + j < k ? column_exponent[first + j] - column_exponent[k] : 0;
    inverse_of[j] = kDescend ? __frcp_rn(d) * power_of_two(-e) : __frcp_rn(-d);
    inverse_of[kBlockColumns + j] = power_of_two(e);
  }
}

}  // namespace

#define LPQ_BLOCK_KERNEL(name, kind, descend, tiles, warps)                              \
  extern "C" __global__ void __launch_bounds__(32 * warps) name##_##tiles(BlockArgs a) { \
    if (a.full) block_body<kind, descend, tiles, warps, true>(a);                        \
    else block_body<kind, descend, tiles, warps, false>(a);                              \
  }
#define LPQ_BLOCK_KERNELS(name, kind, descend) \
  LPQ_BLOCK_KERNEL(name, kind, descend, 1, 2)  \
  LPQ_BLOCK_KERNEL(name, kind, descend, 2, 4)
LPQ_BLOCK_KERNELS(lpq_gptq_solve_whole, kWholeZeros, false)
LPQ_BLOCK_KERNELS(lpq_gptq_solve_any, kAnyZeros, false)
LPQ_BLOCK_KERNELS(lpq_gptq_solve_float, kFloats, false)
LPQ_BLOCK_KERNELS(lpq_gptq_descend_whole, kWholeZeros, true)
LPQ_BLOCK_KERNELS(lpq_gptq_descend_any, kAnyZeros, true)
LPQ_BLOCK_KERNELS(lpq_gptq_descend_float, kFloats, true)

extern "C" __global__ void lpq_gptq_solve_operands(const float* u, int k, const int32_t* none, uint4* blocks) {
  block_operands<false>(u, k, none, blocks);
}
extern "C" __global__ void lpq_gptq_descend_operands(const float* m, int k, const int32_t* column_exponent,
                                                     uint4* blocks) {
  block_operands<true>(m, k, column_exponent, blocks);
}

// out[g][n] = in[n][g], so that a warp's rows lie side by side.
extern "C" __global__ void lpq_gptq_transpose(const float* in, float* out, int rows, int columns) {
  __shared__ float tile[32][33];
  const int r0 = blockIdx.y * 32, c0 = blockIdx.x * 32;
  for (int i = threadIdx.y; i < 32; i += blockDim.y)
    if (r0 + i < rows && c0 + static_cast<int>(threadIdx.x) < columns)
      tile[i][threadIdx.x] = in[static_cast<int64_t>(r0 + i) * columns + c0 + threadIdx.x];
  __syncthreads();
  for (int i = threadIdx.y; i < 32; i += blockDim.y)
    if (c0 + i < columns && r0 + static_cast<int>(threadIdx.x) < rows) {
      const int64_t at = static_cast<int64_t>(c0 + i) * rows + r0 + threadIdx.x;
      out[at] = tile[threadIdx.x][i];
    }
}

// hi + lo = x in bf16.
extern "C" __global__ void lpq_gptq_split_bf16(const float* x, uint16_t* hi, uint16_t* lo, int64_t count) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    split_bfloat(x[i], reinterpret_cast<__nv_bfloat16*>(hi)[i], reinterpret_cast<__nv_bfloat16*>(lo)[i]);
}

// to[n][c] = from[n][c], c < width, of matrices with rows of ld_to and ld_from.
extern "C" __global__ void lpq_gptq_copy_columns(const float* from, int ld_from, float* to, int ld_to, int rows,
                                                 int width) {
  const int64_t count = static_cast<int64_t>(rows) * width;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t row = i / width, c = i % width;
    to[row * ld_to + c] = from[row * ld_from + c];
  }
}

// exponent[n] such that max |t[n][:]| * 2^exponent lies in [2^(kRowTop-1), 2^kRowTop); 0 for a row of zeros.
extern "C" __global__ void lpq_gptq_row_exponent(const float* t, int k, int32_t* exponent) {
  __shared__ float most[32];
  const float* row = t + static_cast<int64_t>(blockIdx.x) * k;
  float m = 0;
  for (int j = threadIdx.x; j < k; j += blockDim.x) m = fmaxf(m, fabsf(row[j]));
  for (int mask = 16; mask > 0; mask >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, mask));
  if (threadIdx.x % 32 == 0) most[threadIdx.x / 32] = m;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < static_cast<int>(blockDim.x / 32); ++w) m = fmaxf(m, most[w]);
    exponent[blockIdx.x] = m > 0 ? min(kRowTop - 1 - exponent_of(m), 120) : 0;
  }
}

// exponent[j] = round(log2 sqrt(M_jj)), exponent[k] = their maximum. One block.
extern "C" __global__ void lpq_gptq_column_exponent(const float* m, int k, int32_t* exponent) {
  __shared__ int most[32];
  int top = -127;
  for (int j = threadIdx.x; j < k; j += blockDim.x) {
    const float d = m[static_cast<int64_t>(j) * k + j];
    const int e = d > 0 ? (exponent_of(d) + 1) >> 1 : 0;
    exponent[j] = e;
    top = max(top, e);
  }
  for (int mask = 16; mask > 0; mask >>= 1) top = max(top, __shfl_xor_sync(~0u, top, mask));
  if (threadIdx.x % 32 == 0) most[threadIdx.x / 32] = top;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < static_cast<int>(blockDim.x / 32); ++w) top = max(top, most[w]);
    exponent[k] = top;
  }
}

// exponents[i] = exponent[members[i]], 0 where that is -1.
extern "C" __global__ void lpq_gptq_gather_exponents(const int32_t* exponent, const int32_t* members, int columns,
                                                     int32_t* exponents) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < columns) exponents[i] = members[i] >= 0 ? exponent[members[i]] : 0;
}

// The metric in scaled units as f16 (block.h); lo may be null. members: row and column i of the output are row and
// column members[i] of M, zeros where that is -1; null: all in order. exponents belong to the columns of the output,
// [size, size]. One block a row; staged: the row goes through shared memory.
extern "C" __global__ void lpq_gptq_scaled_metric(const float* m, int k, const int32_t* exponents,
                                                  const int32_t* members, int size, uint16_t* hi, uint16_t* lo,
                                                  int staged) {
  extern __shared__ float4 room[];
  const int i = blockIdx.x;
  const int from = members ? members[i] : i;
  const float* row = m + static_cast<int64_t>(from < 0 ? 0 : from) * k;
  if (staged) {
    float* line = reinterpret_cast<float*>(room);
    if (k % 4 == 0 && reinterpret_cast<uintptr_t>(m) % 16 == 0)
      for (int j = threadIdx.x; j < k / 4; j += blockDim.x) room[j] = reinterpret_cast<const float4*>(row)[j];
    else
      for (int j = threadIdx.x; j < k; j += blockDim.x) line[j] = row[j];
    __syncthreads();
    row = line;
  }
  const float up = from < 0 ? 0.0f : power_of_two(kMetricShift - exponents[i]);
  for (int j0 = threadIdx.x * 4; j0 < size; j0 += blockDim.x * 4) {
    uint16_t high[4], low[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const int j = j0 + v, column = j >= size ? -1 : members ? members[j] : j;
      // Two factors: the sum of the exponents may leave the range of one.
      const float x = column >= 0 ? row[column] * up * power_of_two(-exponents[j]) : 0.0f;
      __half h, l;
      split_half(x, h, l);
      high[v] = __half_as_ushort(h), low[v] = __half_as_ushort(l);
    }
    const int64_t at = static_cast<int64_t>(i) * size + j0;
    store4(hi + at, high, size - j0, size % 4 == 0);
    if (lo) store4(lo + at, low, size - j0, size % 4 == 0);
  }
}

// (What - T) in scaled units as f16 (block.h); lo may be null. One block a row.
extern "C" __global__ void lpq_gptq_scaled_error(const float* level, const float* t, const float* scale,
                                                 const float* zero, const int32_t* group, int groups, int k,
                                                 const int32_t* column_exponent, const int32_t* row_exponent,
                                                 uint16_t* hi, uint16_t* lo) {
  const int64_t row = blockIdx.x;
  const int shift = row_exponent[row] - column_exponent[k];
  for (int j = threadIdx.x; j < k; j += blockDim.x) {
    const int64_t at = row * k + j, g = row * groups + group[j];
    const float e = ((level[at] - zero[g]) * scale[g] - t[at]) * power_of_two(column_exponent[j] + shift);
    if (lo) split_half(e, reinterpret_cast<__half*>(hi)[at], reinterpret_cast<__half*>(lo)[at]);
    else reinterpret_cast<__half*>(hi)[at] = saturated_half(e);
  }
}

extern "C" __global__ void lpq_gptq_count_to_f64(const unsigned long long* count, double* out) {
  *out = static_cast<double>(*count);
}

// checked = group, with 0 for what lies outside [0, groups), which is a fault.
extern "C" __global__ void lpq_gptq_check_groups(const int32_t* group, int k, int groups, int32_t* checked,
                                                 uint32_t* fault) {
  for (int j = blockIdx.x * blockDim.x + threadIdx.x; j < k; j += gridDim.x * blockDim.x) {
    const bool usable = group[j] >= 0 && group[j] < groups;
    checked[j] = usable ? group[j] : 0;
    if (!usable) *fault = 1;
  }
}

}  // namespace lpq::cuda
