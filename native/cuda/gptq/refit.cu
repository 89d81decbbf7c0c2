// Scale refit: the products v_g M v_h^T of every row on the tensor cores, and a small Cholesky solve a row.
#include "cuda/gptq/block.h"
#include "cuda/gptq/common.cuh"
#include "cuda/gptq/refit.h"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared_memory.cuh"

namespace lpq::cuda {
namespace {

// Which column of a tile of 128 the tensor cores see as column n of product (p, q), 8 columns each: those that a thread
// gets back (2t and 2t + 1 of every product) lie side by side, 8 of them from 32 columns or 4 from 16.
__device__ __forceinline__ int dealt_column(bool wide, int p, int q, int n) {
  return wide ? 32 * (p / 2) + 8 * (n / 2) + 4 * (p % 2) + 2 * q + n % 2 : 16 * p + 4 * (n / 2) + 2 * q + n % 2;
}

// 256 rows a block, 32 a warp. The block keeps its rows' codes of one tile of 128 columns as A operands and meets all
// tiles up to that one; the accumulators meet the codes of the other tile in the layout of the A operand.
template <int kPiece>  // in tiles of 16
__device__ __forceinline__ void products_body(const uint16_t* codes, int columns, int row0, int rows,
                                              const uint32_t* fragments, float* products, int64_t pairs) {
  constexpr int kPieces = 8 / kPiece;
  constexpr int kWords = 8 * 8 * 32;                                             // uint4 a pair of tiles
  extern __shared__ uint4 buffer[];                                              // [2][kWords]
  const int tiles = gridDim.y, high = tiles - 1 - static_cast<int>(blockIdx.y);  // long ones first
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int first_row = blockIdx.x * 256 + warp * 32;
  constexpr bool kWide = kPiece > 1;
  const uint16_t* row_at[2][2];
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      row_at[m][h] = codes + static_cast<int64_t>(row0 + min(first_row + 16 * m + 8 * h + g, rows - 1)) * columns;
  uint32_t a[2][8][4];
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int v = 0; v < 4; ++v)
        a[m][i][v] = *reinterpret_cast<const uint32_t*>(row_at[m][v & 1] + high * 128 + 16 * i + 8 * (v >> 1) + 2 * t);
  const uint4* from = reinterpret_cast<const uint4*>(fragments) + static_cast<int64_t>(high) * (high + 1) / 2 * kWords;
  const auto fetch = [&](int low) {
    uint4* to = buffer + (low & 1) * kWords;
    for (int i = threadIdx.x; i < kWords; i += 256)
      cp_async_16(shared_address(to + i), from + static_cast<int64_t>(low) * kWords + i);
    cp_async_commit();
  };
  fetch(0);
  for (int low = 0; low <= high; ++low) {
    if (low < high) {
      fetch(low + 1);
      cp_async_wait<1>();
    } else {
      cp_async_wait<0>();
    }
    __syncthreads();
    const uint4* b_tile = buffer + (low & 1) * kWords;
#pragma unroll
    for (int sg = 0; sg < kPieces; ++sg)
#pragma unroll
      for (int sh = 0; sh < kPieces; ++sh) {
        float sum[2][2] = {};
        uint32_t dealt[2][2][4];
#pragma unroll
        for (int p = sg * kPiece; p < (sg + 1) * kPiece; ++p) {
          if (!kWide || p % 2 == 0)
#pragma unroll
            for (int m = 0; m < 2; ++m)
#pragma unroll
              for (int h = 0; h < 2; ++h) {
                const uint16_t* at = row_at[m][h] + low * 128 + 16 * p;
                if constexpr (kWide) {
                  const uint4 c = *reinterpret_cast<const uint4*>(at + 8 * t);
                  dealt[m][h][0] = c.x, dealt[m][h][1] = c.y, dealt[m][h][2] = c.z, dealt[m][h][3] = c.w;
                } else {
                  const uint2 c = *reinterpret_cast<const uint2*>(at + 4 * t);
                  dealt[m][h][0] = c.x, dealt[m][h][1] = c.y;
                }
              }
          float acc[2][2][4] = {};
#pragma unroll
          for (int i = sh * kPiece; i < (sh + 1) * kPiece; ++i) {
            const uint4 b = b_tile[(p * 8 + i) * 32 + lane];
#pragma unroll
            for (int m = 0; m < 2; ++m) {
              mma_m16n8k16<false>(acc[m][0], a[m][i], b.x, b.y);
              mma_m16n8k16<false>(acc[m][1], a[m][i], b.z, b.w);
            }
          }
#pragma unroll
          for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int q = 0; q < 2; ++q)
#pragma unroll
              for (int h = 0; h < 2; ++h) {
                const float2 v = unpack_half2(dealt[m][h][kWide ? p % 2 * 2 + q : q]);
                sum[m][h] = __fmaf_rn(acc[m][q][2 * h], v.x, __fmaf_rn(acc[m][q][2 * h + 1], v.y, sum[m][h]));
              }
        }
        const int64_t piece_h = high * kPieces + sh, piece_g = low * kPieces + sg;
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            float s = sum[m][h];
            s += __shfl_xor_sync(~0u, s, 1);
            s += __shfl_xor_sync(~0u, s, 2);
            const int row = first_row + 16 * m + 8 * h + g;
            if (t == 0 && row < rows && piece_g <= piece_h)
              products[row * pairs + piece_h * (piece_h + 1) / 2 + piece_g] = s;
          }
      }
    __syncthreads();
  }
}

__device__ __forceinline__ int64_t packed(int64_t i, int64_t j) { return i * (i + 1) / 2 + j; }

}  // namespace

#define LPQ_PRODUCTS_KERNEL(tiles)                                                                                 \
  extern "C" __global__ void __launch_bounds__(256, 2)                                                             \
      lpq_gptq_products_##tiles(const uint16_t* codes, int columns, int row0, int rows, const uint32_t* fragments, \
                                float* products, int64_t pairs) {                                                  \
    products_body<tiles>(codes, columns, row0, rows, fragments, products, pairs);                                  \
  }
LPQ_PRODUCTS_KERNEL(1)
LPQ_PRODUCTS_KERNEL(2)
LPQ_PRODUCTS_KERNEL(4)
LPQ_PRODUCTS_KERNEL(8)

// B operands of the pairs of tiles (high, low <= high) of the sorted metric [columns, columns], f16; wide: pieces have
// more than 16 columns. One block a pair.
extern "C" __global__ void lpq_gptq_product_fragments(const uint16_t* metric, int columns, int wide,
                                                      uint32_t* fragments) {
  const int64_t pair = blockIdx.x;
  int high = static_cast<int>((sqrt(8.0 * static_cast<double>(pair) + 1.0) - 1.0) / 2.0);
  while (packed(high + 1, 0) <= pair) ++high;
  while (packed(high, 0) > pair) --high;
  const int low = static_cast<int>(pair - packed(high, 0));
  uint32_t* out = fragments + pair * 8192;
  for (int index = threadIdx.x; index < 8192; index += blockDim.x) {
    const int which = index % 4, lane = index / 4 % 32, i = index / 128 % 8, p = index / 1024;
    // The metric is symmetric: two neighbouring rows of the operand are read as neighbours of a row.
    const int column = low * 128 + dealt_column(wide != 0, p, which / 2, lane / 4);
    const int row = high * 128 + 16 * i + 8 * (which % 2) + 2 * (lane % 4);
    out[index] = *reinterpret_cast<const uint32_t*>(metric + static_cast<int64_t>(column) * columns + row);
  }
}

// The sorted rows as f16 in scaled units: codes = (level - zero) * 2^(a - max a + code exponent) and errors = ((level -
// zero) * scale - T) * 2^(a - max a + row exponent). The code exponent brings the row's largest code to [2^14, 2^15):
// damping keeps a - max a above -11 for any K up to 2^16, so whole codes stay exact. One block a row; staged: through
// shared memory.
extern "C" __global__ void lpq_gptq_refit_rows(const float* level, const float* t, const float* scale,
                                               const float* zero, int groups, int group_columns, int k,
                                               const int32_t* members, int columns, const int32_t* exponents,
                                               const int32_t* column_top, const int32_t* row_exponent,
                                               int32_t* code_exponent, uint16_t* codes, uint16_t* errors, int staged) {
  extern __shared__ float memory[];
  __shared__ float shared_most[2][32];
  const int64_t row = blockIdx.x;
  const int top = *column_top, row_shift = row_exponent[row];
  float most = 0, most_zero = 0;
  for (int j = threadIdx.x; j < k; j += blockDim.x) most = fmaxf(most, fabsf(level[row * k + j]));
  for (int g = threadIdx.x; g < groups; g += blockDim.x) most_zero = fmaxf(most_zero, fabsf(zero[row * groups + g]));
  for (int mask = 16; mask > 0; mask >>= 1) {
    most = fmaxf(most, __shfl_xor_sync(~0u, most, mask));
    most_zero = fmaxf(most_zero, __shfl_xor_sync(~0u, most_zero, mask));
  }
  if (threadIdx.x % 32 == 0) shared_most[0][threadIdx.x / 32] = most, shared_most[1][threadIdx.x / 32] = most_zero;
  __syncthreads();
  for (int w = 0; w < static_cast<int>(blockDim.x / 32); ++w)
    most = fmaxf(most, shared_most[0][w]), most_zero = fmaxf(most_zero, shared_most[1][w]);
  most += most_zero;
  const int code_shift = most > 0 ? 14 - exponent_of(most) : 0;
  if (threadIdx.x == 0) code_exponent[row] = code_shift;
  if (staged) {
    float *level_line = memory, *t_line = memory + k;
    if (k % 4 == 0 && reinterpret_cast<uintptr_t>(level) % 16 == 0 && reinterpret_cast<uintptr_t>(t) % 16 == 0) {
      for (int j = threadIdx.x; j < k / 4; j += blockDim.x) {
        reinterpret_cast<float4*>(level_line)[j] = reinterpret_cast<const float4*>(level + row * k)[j];
        reinterpret_cast<float4*>(t_line)[j] = reinterpret_cast<const float4*>(t + row * k)[j];
      }
    } else {
      for (int j = threadIdx.x; j < k; j += blockDim.x) level_line[j] = level[row * k + j], t_line[j] = t[row * k + j];
    }
    __syncthreads();
  }
  const float *level_row = staged ? memory : level + row * k, *t_row = staged ? memory + k : t + row * k;
#pragma unroll 2
  for (int i = threadIdx.x * 2; i < columns; i += blockDim.x * 2) {  // both of one piece, hence of one group
    const int2 pair = *reinterpret_cast<const int2*>(members + i),
               exponent = *reinterpret_cast<const int2*>(exponents + i);
    const int64_t g = row * groups + min(i / group_columns, groups - 1);
    const float s = scale[g], z = zero[g];
    float code[2] = {}, error[2] = {};
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      const int j = v ? pair.y : pair.x, e = (v ? exponent.y : exponent.x) - top;
      if (j < 0) continue;
      code[v] = level_row[j] - z;
      error[v] = (code[v] * s - t_row[j]) * power_of_two(e + row_shift);
      code[v] *= power_of_two(e + code_shift);
    }
    *reinterpret_cast<__half2*>(codes + row * columns + i) =
        __halves2half2(saturated_half(code[0]), saturated_half(code[1]));
    *reinterpret_cast<__half2*>(errors + row * columns + i) =
        __halves2half2(saturated_half(error[0]), saturated_half(error[1]));
  }
}

// Newton's step in the scales of a row: (A + ridge) d = r - ridge s with r = -v (What - T) M: the same solution as
// (A + ridge) s = b, without the cancellation. Blocks take rows in turn.
extern "C" __global__ void __launch_bounds__(128) lpq_gptq_refit_solve(RefitArgs a) {
  extern __shared__ float memory[];
  const int n = a.groups, threads = blockDim.x, tid = threadIdx.x, warp = tid / 32, lane = tid % 32,
            warps = threads / 32;
  float* residual = memory;     // [n]
  float* step = residual + n;   // [n]
  float* column = step + n;     // [n]
  float* scratch = column + n;  // [8]
  float* matrix = a.room ? a.room + packed(n, 0) * blockIdx.x : scratch + 8;
  for (int r = blockIdx.x; r < a.rows; r += gridDim.x) {
    const int64_t row = a.row0 + r;
    __syncthreads();
    const int width = a.pieces_per_group * a.piece;
    for (int g = warp; g < n; g += warps) {
      float sum = 0;
      const int64_t base = row * a.columns + static_cast<int64_t>(g) * width;
      for (int i = lane; i < width; i += 32)
        sum = __fmaf_rn(__half2float(reinterpret_cast<const __half*>(a.codes)[base + i]), a.gradient[base + i], sum);
      for (int mask = 16; mask > 0; mask >>= 1) sum += __shfl_xor_sync(~0u, sum, mask);
      if (lane == 0) residual[g] = -sum * power_of_two(a.code_exponent[row] - a.row_exponent[row]);
    }
    const float* products = a.products + a.pairs * r;
    const auto product = [&](int g, int h) {  // g >= h
      if (a.pieces_per_group == 1) return products[packed(g, h)];
      float sum = 0;
      for (int x = g * a.pieces_per_group; x < (g + 1) * a.pieces_per_group; ++x)
        for (int y = h * a.pieces_per_group; y < (h + 1) * a.pieces_per_group && y <= x; ++y)
          sum += products[packed(x, y)] * (g == h && y < x ? 2.0f : 1.0f);
      return sum;
    };
    for (int g = warp; g < n; g += warps) {
      float* line = matrix + packed(g, 0);
#pragma unroll 4
      for (int h = lane; h <= g; h += 32) line[h] = product(g, h);
    }
    __syncthreads();
    if (warp == 0) {
      float trace = 0;
      for (int g = lane; g < n; g += 32) trace += matrix[packed(g, g)];
      for (int mask = 16; mask > 0; mask >>= 1) trace += __shfl_xor_sync(~0u, trace, mask);
      if (lane == 0) scratch[0] = trace;
    }
    __syncthreads();
    const float trace = scratch[0], ridge = 1e-7f * trace / static_cast<float>(n);
    if (!(trace > 0)) continue;  // no codes but zeros
    // A group of zero codes has no say; its scale stays.
    for (int g = tid; g < n; g += threads) {
      const float d = matrix[packed(g, g)];
      if (d > 0) {
        matrix[packed(g, g)] = d + ridge;
        step[g] = residual[g] - ridge * a.scale[row * n + g];
      } else {
        matrix[packed(g, g)] = trace;
        step[g] = 0;
        residual[g] = 0;
      }
    }
    __syncthreads();
    bool definite = true;
    for (int j = 0; j < n; ++j) {
      const float d = matrix[packed(j, j)];
      definite = definite && d > 0;
      if (!definite) break;  // the same for every thread
      const float root = sqrtf(d), inverse = __fdiv_rn(1.0f, root);
      __syncthreads();
      if (tid == 0) {
        matrix[packed(j, j)] = root;
        step[j] *= inverse;  // forward substitution goes along
      }
      for (int i = j + 1 + tid; i < n; i += threads) matrix[packed(i, j)] = column[i] = matrix[packed(i, j)] * inverse;
      __syncthreads();
      const float solved = step[j];
      for (int i = j + 1 + warp; i < n; i += warps) {
        const float c = column[i];
        float* line = matrix + packed(i, 0);
        for (int p = j + 1 + lane; p <= i; p += 32) line[p] = __fmaf_rn(-c, column[p], line[p]);
        if (lane == 0) step[i] = __fmaf_rn(-c, solved, step[i]);
      }
      __syncthreads();
    }
    if (!definite) continue;
    for (int j = n; j-- > 0;) {
      const float* line = matrix + packed(j, 0);
      const float x = step[j] / line[j];
      __syncthreads();
      if (tid == 0) step[j] = x;
      for (int i = tid; i < j; i += threads) step[i] = __fmaf_rn(-line[i], x, step[i]);
      __syncthreads();
    }
    // Usable, and an improvement with the scales as they round to f32?
    float change = 0;
    bool usable = true;
    for (int g = tid; g < n; g += threads) {
      const float old = a.scale[row * n + g], ratio = (old + step[g]) / old;
      usable = usable && ratio > 0.25f && ratio < 4.0f;
      column[g] = old + step[g];
      step[g] = column[g] - old;
    }
    usable = __syncthreads_and(usable);
    if (!usable) continue;
    if (a.solution) {
      for (int g = tid; g < n; g += threads) a.solution[row * n + g] = column[g], a.residual[row * n + g] = residual[g];
      continue;
    }
    for (int g = warp; g < n; g += warps) {
      float line = 0;
#pragma unroll 4
      for (int h = lane; h < n; h += 32) {
        const float m = h <= g ? product(g, h) : product(h, g);
        line = __fmaf_rn(m, step[h], line);
      }
      for (int mask = 16; mask > 0; mask >>= 1) line += __shfl_xor_sync(~0u, line, mask);
      if (lane == 0) change += step[g] * (line - 2.0f * residual[g]);
    }
    if (lane == 0) scratch[warp] = change;
    __syncthreads();
    change = 0;
    for (int w = 0; w < warps; ++w) change += scratch[w];
    if (change < 0) {
      for (int g = tid; g < n; g += threads) a.scale[row * n + g] = column[g];
      if (tid == 0) atomicAdd(a.refitted, 1ull);
    }
  }
}

// The same for up to 16 kTile groups, a row a block of 16 x 16 threads with kTile x kTile elements each: the inverse of
// the Cholesky factor in place (as in factor.cu), then two products with a vector.
namespace {

// Sums of products over the pieces of two groups, packed, and what is left of the errors along each group.
__device__ __forceinline__ void gather_small(const RefitArgs& a, int r, int tid, int warp, int lane, float* matrix,
                                             float* residual) {
  const int64_t row = a.row0 + r;
  const float* products = a.products + a.pairs * r;
  const int n = a.groups, width = a.pieces_per_group * a.piece, count = n * (n + 1) / 2;
  if (a.pieces_per_group == 1) {
#pragma unroll 4
    for (int i = tid; i < count; i += 256) matrix[i] = products[i];
  } else {
    for (int g = warp; g < n; g += 8)
      for (int h = lane; h <= g; h += 32) {
        float sum = 0;
        for (int x = g * a.pieces_per_group; x < (g + 1) * a.pieces_per_group; ++x)
          for (int y = h * a.pieces_per_group; y < (h + 1) * a.pieces_per_group && y <= x; ++y)
            sum += products[packed(x, y)] * (g == h && y < x ? 2.0f : 1.0f);
        matrix[packed(g, h)] = sum;
      }
  }
  const float down = power_of_two(a.code_exponent[row] - a.row_exponent[row]);
  for (int g = warp; g < n; g += 8) {
    float sum = 0;
    const int64_t base = row * a.columns + static_cast<int64_t>(g) * width;
#pragma unroll 4
    for (int i = lane * 2; i < width; i += 64) {
      const float2 c = __half22float2(*reinterpret_cast<const __half2*>(a.codes + base + i)),
                   d = *reinterpret_cast<const float2*>(a.gradient + base + i);
      sum = __fmaf_rn(c.x, d.x, __fmaf_rn(c.y, d.y, sum));
    }
    for (int mask = 16; mask > 0; mask >>= 1) sum += __shfl_xor_sync(~0u, sum, mask);
    if (lane == 0) residual[g] = -sum * down;
  }
}

// middle = X step, and the parts of step = X^T middle: sums over the 16 threads of a row, and of a column through
// shared memory.
template <int kTile>
__device__ __forceinline__ void multiply_twice(int n, int ty, int tx, const float (&v)[kTile][kTile], const float* step,
                                               float* middle, float (&parts)[16][16 * kTile]) {
#pragma unroll
  for (int i = 0; i < kTile; ++i) {
    const int g = ty + 16 * i;
    float sum = 0;
#pragma unroll
    for (int c = 0; c <= i; ++c)
      if (tx + 16 * c <= g && g < n) sum = __fmaf_rn(v[i][c], step[tx + 16 * c], sum);
    for (int mask = 8; mask > 0; mask >>= 1) sum += __shfl_xor_sync(~0u, sum, mask);
    if (tx == 0) middle[g] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int c = 0; c < kTile; ++c) {
    const int h = tx + 16 * c;
    float sum = 0;
#pragma unroll
    for (int i = c; i < kTile; ++i)
      if (h <= ty + 16 * i && ty + 16 * i < n) sum = __fmaf_rn(v[i][c], middle[ty + 16 * i], sum);
    parts[ty][h] = sum;
  }
  __syncthreads();
}

template <int kTile>
__device__ __forceinline__ void solve_small(const RefitArgs& a) {
  constexpr int kSize = 16 * kTile;
  extern __shared__ float matrix[];  // [n (n + 1) / 2]
  __shared__ float residual[kSize], step[kSize], middle[kSize], column_of[2][kSize], row_of[2][kSize], parts[16][kSize],
      sums[8];
  const int n = a.groups, tid = threadIdx.x, warp = tid / 32, lane = tid % 32, ty = tid / 16, tx = tid % 16,
            r = blockIdx.x;
  const int64_t row = a.row0 + r;
  gather_small(a, r, tid, warp, lane, matrix, residual);
  __syncthreads();
  if (warp == 0) {
    float sum = 0;
    for (int g = lane; g < n; g += 32) sum += matrix[packed(g, g)];
    for (int mask = 16; mask > 0; mask >>= 1) sum += __shfl_xor_sync(~0u, sum, mask);
    if (lane == 0) sums[0] = sum;
  }
  __syncthreads();
  const float trace = sums[0], ridge = 1e-7f * trace / static_cast<float>(n);
  if (!(trace > 0)) return;  // no codes but zeros
  float v[kTile][kTile];
#pragma unroll
  for (int i = 0; i < kTile; ++i)
#pragma unroll
    for (int j = 0; j < kTile; ++j) {
      const int g = ty + 16 * i, h = tx + 16 * j;
      float x = g == h ? 1.0f : 0.0f;
      if (g < n && h <= g) {
        x = matrix[packed(g, h)];
        if (g == h) x = x > 0 ? x + ridge : trace;  // a group of zero codes has no say; its scale stays
      }
      v[i][j] = x;
    }
  for (int g = tid; g < n; g += 256) {
    const bool silent = !(matrix[packed(g, g)] > 0);
    if (silent) residual[g] = 0;
    step[g] = silent ? 0.0f : residual[g] - ridge * a.scale[row * n + g];
  }
  bool definite = true;
#pragma unroll
  for (int jb = 0; jb < kTile; ++jb)
    for (int jj = 0; jj < 16; ++jj) {
      const int j = 16 * jb + jj;
      if (j >= n) break;  // the same for all
      float *column = column_of[j & 1], *line = row_of[j & 1];
      if (tx == jj)
#pragma unroll
        for (int i = jb; i < kTile; ++i) column[ty + 16 * i] = v[i][jb];
      if (ty == jj)
#pragma unroll
        for (int c = 0; c <= jb; ++c) line[tx + 16 * c] = v[jb][c];
      __syncthreads();
      const float pivot = column[j];
      definite = definite && pivot > 0;
      const float d = rsqrtf(definite ? pivot : 1.0f);
      float w[kTile];
#pragma unroll
      for (int c = 0; c < kTile; ++c) {
        const int at = tx + 16 * c;
        w[c] = c < jb ? line[at] * d : c > jb ? column[at] * d : at == j ? d : (at < j ? line[at] : column[at]) * d;
      }
#pragma unroll
      for (int i = jb; i < kTile; ++i) {
        const int at = ty + 16 * i;
        if (at > j) {
          const float l = -(column[at] * d);
#pragma unroll
          for (int c = 0; c <= i; ++c) v[i][c] = __fmaf_rn(l, w[c], c == jb && tx == jj ? 0.0f : v[i][c]);
        } else if (at == j) {
#pragma unroll
          for (int c = 0; c <= i; ++c) v[i][c] = w[c];
        }
      }
    }
  if (!definite) return;  // the same for all
  multiply_twice(n, ty, tx, v, step, middle, parts);
  // Usable, and an improvement with the scales as they round to f32?
  bool usable = true;
  for (int g = tid; g < n; g += 256) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) sum += parts[i][g];
    const float old = a.scale[row * n + g], now = old + sum, ratio = now / old;
    usable = ratio > 0.25f && ratio < 4.0f;
    middle[g] = now;
    step[g] = now - old;  // as it rounds to f32
  }
  if (!__syncthreads_and(usable)) return;
  if (a.solution) {
    for (int g = tid; g < n; g += 256) a.solution[row * n + g] = middle[g], a.residual[row * n + g] = residual[g];
    return;
  }
  float change = 0;
  for (int g = warp; g < n; g += 8) {
    float sum = 0;
    for (int h = lane; h < n; h += 32) sum = __fmaf_rn(matrix[h <= g ? packed(g, h) : packed(h, g)], step[h], sum);
    for (int mask = 16; mask > 0; mask >>= 1) sum += __shfl_xor_sync(~0u, sum, mask);
    if (lane == 0) change += step[g] * (sum - 2.0f * residual[g]);
  }
  if (lane == 0) sums[warp] = change;
  __syncthreads();
  change = 0;
  for (int w = 0; w < 8; ++w) change += sums[w];
  if (change < 0) {
    for (int g = tid; g < n; g += 256) a.scale[row * n + g] = middle[g];
    if (tid == 0) atomicAdd(a.refitted, 1ull);
  }
}
}  // namespace

extern "C" __global__ void __launch_bounds__(256) lpq_gptq_refit_solve_2(RefitArgs a) { solve_small<2>(a); }
extern "C" __global__ void __launch_bounds__(256) lpq_gptq_refit_solve_4(RefitArgs a) { solve_small<4>(a); }
extern "C" __global__ void __launch_bounds__(256) lpq_gptq_refit_solve_8(RefitArgs a) { solve_small<8>(a); }

}  // namespace lpq::cuda
