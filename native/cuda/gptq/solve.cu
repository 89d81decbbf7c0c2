// The walk over one block of 128 columns, for every row at once; and the operands of the products between blocks.
#include "cuda/gptq/block.h"
#include "cuda/gptq/common.cuh"

namespace lpq::cuda {
namespace {

constexpr int kPitch = kBlockColumns + 4;  // keeps 16-byte accesses of neighbouring rows in different banks
constexpr int kChunk = 8;                  // columns held in registers

// a / b with y = 1 / b at hand: one correction by the exact remainder. It is the correctly rounded quotient but for about one
// case in 10^7, and always where the quotient is a float, ties among them.
__device__ __forceinline__ float divide(float a, float b, float y) {
  const float q = a * y;
  return __fmaf_rn(__fmaf_rn(-q, b, a), y, q);
}

__device__ __forceinline__ void copy16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))), "l"(global));
}

__device__ __forceinline__ float4 load4(const float* p, int count, bool aligned) {
  if (aligned && count >= 4) return *reinterpret_cast<const float4*>(p);
  return make_float4(count > 0 ? p[0] : 0.0f, count > 1 ? p[1] : 0.0f, count > 2 ? p[2] : 0.0f, count > 3 ? p[3] : 0.0f);
}
__device__ __forceinline__ void store4(uint16_t* p, const uint16_t (&v)[4], int count, bool aligned) {
  if (aligned && count >= 4) {
    *reinterpret_cast<uint2*>(p) = make_uint2(v[0] | static_cast<uint32_t>(v[1]) << 16, v[2] | static_cast<uint32_t>(v[3]) << 16);
    return;
  }
  for (int i = 0; i < 4; ++i)
    if (i < count) p[i] = v[i];
}

enum : int { kWholeZeros, kAnyZeros, kFloats };  // grids: integers whose zeros are whole numbers, any integers, floats

// kLanes threads share a row: all of them walk the chunk in registers, each updates its part of the columns behind it.
// Elements see the operations of the CPU's kernel in the same order.
template <int kGrid, bool kDescend, int kLanes, int kRows>
__device__ __forceinline__ void block_body(const BlockArgs& a) {
  constexpr int kThreads = kLanes * kRows;
  extern __shared__ float4 shared[];
  float* x_tile = reinterpret_cast<float*>(shared);    // [kRows][kPitch] in: x, out: errors or steps
  float* level_tile = x_tile + kRows * kPitch;         // [kRows][kPitch]
  float* matrix = level_tile + kRows * kPitch;         // [128][128], upper part
  __shared__ float inverse_of[kBlockColumns];          // 1 / diagonal
  __shared__ alignas(16) float descale[kBlockColumns], upscale[kBlockColumns];  // powers of two (block.h)
  __shared__ float row_down[kRows], row_up[kRows];
  __shared__ int group_of[kBlockColumns];
  const int tid = threadIdx.x, row0 = blockIdx.x * kRows;
  const DeviceGrid<kGrid == kFloats> grid(a.grid);

  const float* block = a.matrix + static_cast<int64_t>(a.first) * a.k + a.first;
  const bool aligned = a.k % 4 == 0 && reinterpret_cast<uintptr_t>(a.matrix) % 16 == 0;
  if (aligned && a.width == kBlockColumns) {
#pragma unroll 8
    for (int i = tid; i < kBlockColumns * kBlockColumns / 4; i += kThreads) {
      const int j = i / (kBlockColumns / 4), c = i % (kBlockColumns / 4) * 4;
      if (c + 3 >= j) copy16(matrix + j * kBlockColumns + c, block + static_cast<int64_t>(j) * a.k + c);
    }
  } else {
    for (int i = tid; i < kBlockColumns * kBlockColumns; i += kThreads) {
      const int j = i / kBlockColumns, c = i % kBlockColumns;
      matrix[i] = c >= j && c < a.width ? block[static_cast<int64_t>(j) * a.k + c] : j == c ? 1.0f : 0.0f;
    }
  }
  asm volatile("cp.async.commit_group;\n");
  constexpr int kSteps = kBlockColumns / 4 / kLanes;  // float4 a thread
  const bool whole = a.k % 4 == 0 && reinterpret_cast<uintptr_t>(a.level) % 16 == 0;
  float4 x_in[kSteps], level_in[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int i = tid + step * kThreads, r = i / (kBlockColumns / 4), c = i % (kBlockColumns / 4) * 4, row = row0 + r;
    const int count = row < a.n ? a.width - c : 0;
    x_in[step] = load4(a.x + static_cast<int64_t>(count > 0 ? row : 0) * a.ldx + c, count, true);
    if constexpr (kDescend) level_in[step] = load4(a.level + static_cast<int64_t>(count > 0 ? row : 0) * a.k + a.first + c, count, whole);
  }
  for (int j = tid; j < kBlockColumns; j += kThreads) {
    const bool inside = j < a.width;
    group_of[j] = inside ? a.group[a.first + j] : -1;
    inverse_of[j] = inside ? __frcp_rn(block[static_cast<int64_t>(j) * a.k + j]) : 1.0f;
    if constexpr (kDescend) {
      const int e = inside ? a.column_exponent[a.first + j] : 0, top = a.column_exponent[a.k];
      descale[j] = power_of_two(e + top - kMetricShift);
      upscale[j] = power_of_two(e - top);
    }
  }
  if constexpr (kDescend)
    for (int r = tid; r < kRows; r += kThreads) {
      const int e = row0 + r < a.n ? a.row_exponent[row0 + r] : 0;
      row_down[r] = power_of_two(-e);
      row_up[r] = power_of_two(e);
    }
  __syncthreads();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int i = tid + step * kThreads, r = i / (kBlockColumns / 4), c = i % (kBlockColumns / 4) * 4;
    float4 x = x_in[step];
    if constexpr (kDescend) {
      const float4 d = *reinterpret_cast<const float4*>(descale + c);
      const float down = row_down[r];
      x = make_float4(x.x * d.x * down, x.y * d.y * down, x.z * d.z * down, x.w * d.w * down);
      *reinterpret_cast<float4*>(level_tile + r * kPitch + c) = level_in[step];
    }
    *reinterpret_cast<float4*>(x_tile + r * kPitch + c) = x;
  }
  asm volatile("cp.async.wait_group 0;\n");
  __syncthreads();

  const int r = tid / kLanes, lane = tid % kLanes;
  const int row = min(row0 + r, a.n - 1);
  float* x_row = x_tile + r * kPitch;
  float* level_row = level_tile + r * kPitch;
  const float *scale_t = a.scale_t + row, *zero_t = a.zero_t + row, *inverse_t = a.inverse_t + row;
  int moved = 0;
  float next_scale[kChunk], next_zero[kChunk], next_inverse[kChunk];
  const auto prefetch = [&](int c0) {
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const int g = group_of[min(c0, kBlockColumns - kChunk) + j];
      const int64_t at = static_cast<int64_t>(max(g, 0)) * a.n;
      next_scale[j] = scale_t[at];
      next_zero[j] = zero_t[at];
      next_inverse[j] = inverse_t[at];
    }
  };
  prefetch(0);
  for (int c0 = 0; c0 < a.width; c0 += kChunk) {
    float x[kChunk], level[kChunk], step[kChunk], scale[kChunk], zero[kChunk], inverse[kChunk];
#pragma unroll
    for (int j = 0; j < kChunk; ++j) scale[j] = next_scale[j], zero[j] = next_zero[j], inverse[j] = next_inverse[j];
    prefetch(c0 + kChunk);
#pragma unroll
    for (int j = 0; j < kChunk; j += 4) {
      *reinterpret_cast<float4*>(x + j) = *reinterpret_cast<const float4*>(x_row + c0 + j);
      if constexpr (kDescend) *reinterpret_cast<float4*>(level + j) = *reinterpret_cast<const float4*>(level_row + c0 + j);
    }
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const float* line = matrix + (c0 + j) * kBlockColumns + c0;
      const float diagonal = line[j], inverse_diagonal = inverse_of[c0 + j];
      const float before = kDescend ? level[j] - zero[j] : 0.0f;
      const float wanted = kDescend ? before * scale[j] - divide(x[j], diagonal, inverse_diagonal) : x[j];
      const float quotient = divide(wanted, scale[j], inverse[j]);
      float after;  // level - zero
      if constexpr (kGrid == kWholeZeros) {
        constexpr float kRint = 12582912.0f;
        after = fminf(fmaxf(quotient, a.grid.low - zero[j]), a.grid.high - zero[j]) + kRint - kRint;
        level[j] = after + zero[j];
      } else {
        level[j] = grid.nearest_quotient(quotient, grid.step(scale[j], zero[j]));
        after = level[j] - zero[j];
      }
      if constexpr (kDescend) {
        step[j] = (after - before) * scale[j];
      } else {
        step[j] = -divide(x[j] - after * scale[j], diagonal, inverse_diagonal);
      }
      if (c0 + j >= a.width) step[j] = 0;
      if (kDescend) moved += step[j] != 0.0f;
#pragma unroll
      for (int i = j + 1; i < kChunk; ++i) x[i] = __fmaf_rn(step[j], line[i], x[i]);
    }
    __syncwarp();
    if (lane == 0) {
#pragma unroll
      for (int j = 0; j < kChunk; j += 4) {
        const float sign = kDescend ? 1.0f : -1.0f;
        *reinterpret_cast<float4*>(x_row + c0 + j) = make_float4(sign * step[j], sign * step[j + 1], sign * step[j + 2], sign * step[j + 3]);
        *reinterpret_cast<float4*>(level_row + c0 + j) = make_float4(level[j], level[j + 1], level[j + 2], level[j + 3]);
      }
    }
#pragma unroll 2
    for (int i = c0 + kChunk + 4 * lane; i < kBlockColumns; i += 4 * kLanes) {
      float4 v = *reinterpret_cast<const float4*>(x_row + i);
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        const float4 m = *reinterpret_cast<const float4*>(matrix + (c0 + j) * kBlockColumns + i);
        v.x = __fmaf_rn(step[j], m.x, v.x);
        v.y = __fmaf_rn(step[j], m.y, v.y);
        v.z = __fmaf_rn(step[j], m.z, v.z);
        v.w = __fmaf_rn(step[j], m.w, v.w);
      }
      *reinterpret_cast<float4*>(x_row + i) = v;
    }
    __syncwarp();
  }
  __syncthreads();

#pragma unroll 4
  for (int i = tid; i < kRows * kBlockColumns / 4; i += kThreads) {
    const int rr = i / (kBlockColumns / 4), c = i % (kBlockColumns / 4) * 4, at_row = row0 + rr;
    const int count = at_row < a.n ? a.width - c : 0;
    if (count <= 0) continue;
    const int64_t at = static_cast<int64_t>(at_row) * a.k + a.first + c;
    const float4 level4 = *reinterpret_cast<const float4*>(level_tile + rr * kPitch + c), step4 = *reinterpret_cast<const float4*>(x_tile + rr * kPitch + c);
    const float level[4] = {level4.x, level4.y, level4.z, level4.w}, step[4] = {step4.x, step4.y, step4.z, step4.w};
    if (whole && count >= 4)
      *reinterpret_cast<float4*>(a.level + at) = level4;
    else
      for (int v = 0; v < 4; ++v)
        if (v < count) a.level[at + v] = level[v];
    uint16_t hi[4], lo[4];
    if constexpr (kDescend) {
      const float4 t4 = load4(a.t + at, count, a.k % 4 == 0 && reinterpret_cast<uintptr_t>(a.t) % 16 == 0);
      const float t[4] = {t4.x, t4.y, t4.z, t4.w};
      uint16_t delta_hi[4], delta_lo[4];
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const int64_t g = static_cast<int64_t>(at_row) * a.groups + max(group_of[c + v], 0);
        const float factor = upscale[c + v] * row_up[rr];
        const float error = ((level[v] - a.zero[g]) * a.scale[g] - t[v]) * factor;
        __half h, l;
        split_half(error, h, l);
        hi[v] = __half_as_ushort(h), lo[v] = __half_as_ushort(l);
        split_half(step[v] * factor, h, l);
        delta_hi[v] = __half_as_ushort(h), delta_lo[v] = __half_as_ushort(l);
      }
      const int64_t delta_at = static_cast<int64_t>(at_row) * a.ldd + c;
      store4(a.hi + at, hi, count, whole);
      store4(a.delta_hi + delta_at, delta_hi, count, true);
      if (a.lo) {
        store4(a.lo + at, lo, count, whole);
        store4(a.delta_lo + delta_at, delta_lo, count, true);
      }
    } else {
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        __nv_bfloat16 h, l;
        split_bfloat(step[v], h, l);
        hi[v] = __bfloat16_as_ushort(h), lo[v] = __bfloat16_as_ushort(l);
      }
      store4(a.hi + at, hi, count, whole);
      store4(a.lo + at, lo, count, whole);
    }
  }
  if constexpr (kDescend) {
    if (row0 + r >= a.n || lane != 0) moved = 0;
    for (int mask = 16; mask > 0; mask >>= 1) moved += __shfl_xor_sync(~0u, moved, mask);
    if (tid % 32 == 0 && moved) atomicAdd(a.moved, static_cast<unsigned long long>(moved));  // whole numbers: any order
  }
}

}  // namespace

#define LPQ_BLOCK_KERNEL(name, kind, descend, lanes, rows) \
  extern "C" __global__ void __launch_bounds__(lanes* rows) name##_##lanes(BlockArgs a) { block_body<kind, descend, lanes, rows>(a); }
#define LPQ_BLOCK_KERNELS(name, kind, descend)    \
  LPQ_BLOCK_KERNEL(name, kind, descend, 2, 128)   \
  LPQ_BLOCK_KERNEL(name, kind, descend, 4, 32)    \
  LPQ_BLOCK_KERNEL(name, kind, descend, 8, 16)
LPQ_BLOCK_KERNELS(lpq_gptq_solve_whole, kWholeZeros, false)
LPQ_BLOCK_KERNELS(lpq_gptq_solve_any, kAnyZeros, false)
LPQ_BLOCK_KERNELS(lpq_gptq_solve_float, kFloats, false)
LPQ_BLOCK_KERNELS(lpq_gptq_descend_whole, kWholeZeros, true)
LPQ_BLOCK_KERNELS(lpq_gptq_descend_any, kAnyZeros, true)
LPQ_BLOCK_KERNELS(lpq_gptq_descend_float, kFloats, true)

// out[g][n] = in[n][g], and inverse[g][n] = 1 / in[n][g] unless null.
extern "C" __global__ void lpq_gptq_transpose(const float* in, float* out, float* inverse, int rows, int columns) {
  __shared__ float tile[32][33];
  const int r0 = blockIdx.y * 32, c0 = blockIdx.x * 32;
  for (int i = threadIdx.y; i < 32; i += blockDim.y)
    if (r0 + i < rows && c0 + static_cast<int>(threadIdx.x) < columns) tile[i][threadIdx.x] = in[static_cast<int64_t>(r0 + i) * columns + c0 + threadIdx.x];
  __syncthreads();
  for (int i = threadIdx.y; i < 32; i += blockDim.y)
    if (c0 + i < columns && r0 + static_cast<int>(threadIdx.x) < rows) {
      const int64_t at = static_cast<int64_t>(c0 + i) * rows + r0 + threadIdx.x;
      out[at] = tile[threadIdx.x][i];
      if (inverse) inverse[at] = __frcp_rn(tile[threadIdx.x][i]);
    }
}

// hi + lo = x in bf16.
extern "C" __global__ void lpq_gptq_split_bf16(const float* x, uint16_t* hi, uint16_t* lo, int64_t count) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    split_bfloat(x[i], reinterpret_cast<__nv_bfloat16*>(hi)[i], reinterpret_cast<__nv_bfloat16*>(lo)[i]);
}

// to[n][c] = from[n][c], c < width, of matrices with rows of ld_to and ld_from.
extern "C" __global__ void lpq_gptq_copy_columns(const float* from, int ld_from, float* to, int ld_to, int rows, int width) {
  const int64_t count = static_cast<int64_t>(rows) * width;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
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
extern "C" __global__ void lpq_gptq_gather_exponents(const int32_t* exponent, const int32_t* members, int columns, int32_t* exponents) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < columns) exponents[i] = members[i] >= 0 ? exponent[members[i]] : 0;
}

// The metric in scaled units as f16 (block.h); lo may be null. members: row and column i of the output are row and column
// members[i] of M, zeros where that is -1; null: all in order. exponents belong to the columns of the output, [size, size].
// One block a row; staged: the row goes through shared memory.
extern "C" __global__ void lpq_gptq_scaled_metric(const float* m, int k, const int32_t* exponents, const int32_t* members, int size, uint16_t* hi, uint16_t* lo, int staged) {
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
extern "C" __global__ void lpq_gptq_scaled_error(const float* level, const float* t, const float* scale, const float* zero, const int32_t* group, int groups, int k,
                                                 const int32_t* column_exponent, const int32_t* row_exponent, uint16_t* hi, uint16_t* lo) {
  const int64_t row = blockIdx.x;
  const int shift = row_exponent[row] - column_exponent[k];
  for (int j = threadIdx.x; j < k; j += blockDim.x) {
    const int64_t at = row * k + j, g = row * groups + group[j];
    const float e = ((level[at] - zero[g]) * scale[g] - t[at]) * power_of_two(column_exponent[j] + shift);
    if (lo)
      split_half(e, reinterpret_cast<__half*>(hi)[at], reinterpret_cast<__half*>(lo)[at]);
    else
      reinterpret_cast<__half*>(hi)[at] = saturated_half(e);
  }
}

extern "C" __global__ void lpq_gptq_count_to_f64(const unsigned long long* count, double* out) { *out = static_cast<double>(*count); }

// checked = group, with 0 for what lies outside [0, groups), which is a fault.
extern "C" __global__ void lpq_gptq_check_groups(const int32_t* group, int k, int groups, int32_t* checked, uint32_t* fault) {
  for (int j = blockIdx.x * blockDim.x + threadIdx.x; j < k; j += gridDim.x * blockDim.x) {
    const bool usable = group[j] >= 0 && group[j] < groups;
    checked[j] = usable ? group[j] : 0;
    if (!usable) *fault = 1;
  }
}

}  // namespace lpq::cuda
