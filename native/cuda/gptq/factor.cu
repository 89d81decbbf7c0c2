// Moving the Hessian into solving order and its factor back.
#include <cstdint>

namespace lpq::cuda {
namespace {

// Of an f64 matrix, or an f32 one when narrow.
__device__ __forceinline__ double entry(const void* h, int narrow, int64_t at) {
  return narrow ? static_cast<double>(static_cast<const float*>(h)[at]) : static_cast<const double*>(h)[at];
}

}  // namespace

// facts: [0] mean and [1] largest of diag(H), [2] first column that is not finite or -1, [3] 1 unless order is a
// permutation. dead[j] = H_jj == 0. seen: U32 [k], zeros. One block.
extern "C" __global__ void lpq_gptq_factor_facts(const void* h, int narrow, const int32_t* order, int k, uint32_t* seen,
                                                 uint8_t* dead, double* diagonal, double* facts) {
  __shared__ double mosts[32];
  __shared__ int first;
  __shared__ int wrong;
  if (threadIdx.x == 0) first = k, wrong = 0;
  __syncthreads();
  double most = 0;
  for (int j = threadIdx.x; j < k; j += blockDim.x) {
    const double d = entry(h, narrow, static_cast<int64_t>(j) * k + j);
    diagonal[j] = d;
    if (!isfinite(d)) atomicMin(&first, j);
    dead[j] = d == 0.0;
    most = d > most ? d : most;
    const int32_t o = order[j];
    if (o < 0 || o >= k || atomicAdd(&seen[o], 1u) != 0) wrong = 1;
  }
  for (int mask = 16; mask > 0; mask >>= 1) {
    const double other = __shfl_xor_sync(~0u, most, mask);
    most = other > most ? other : most;
  }
  if (threadIdx.x % 32 == 0) mosts[threadIdx.x / 32] = most;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < static_cast<int>(blockDim.x / 32); ++w) most = mosts[w] > most ? mosts[w] : most;
    double sum = 0;  // in the CPU's order, so that the damping is the same
#pragma unroll 16
    for (int j = 0; j < k; ++j) sum += diagonal[j];
    const double mean = sum / k;
    facts[0] = mean == 0 ? 1 : mean;  // every channel is dead: any positive diagonal serves
    facts[1] = most;
    facts[2] = first < k ? first : -1;
    facts[3] = wrong;
  }
}

// reversed = P H P^T + damping from the far end in f64, or m = the same in order in f32; the other is null. facts: as
// above;
// floor: the least diagonal entry over the largest. floored counts diagonal entries below that. One block a row;
// staged: the row of H goes through shared memory.
extern "C" __global__ void lpq_gptq_factor_gather(const void* h, int narrow, const int32_t* order, int k,
                                                  const uint8_t* dead, const double* facts, double fraction,
                                                  double floor, double* reversed, float* m, unsigned long long* floored,
                                                  int staged) {
  extern __shared__ double line[];
  const int64_t i = blockIdx.x;
  const int32_t from = order[i];
  if (from < 0 || from >= k) return;  // facts tell
  const double mean = facts[0], floor_value = floor * facts[1];
  const int64_t row = static_cast<int64_t>(from) * k;
  if (staged) {
    for (int j = threadIdx.x; j < k; j += blockDim.x) line[j] = entry(h, narrow, row + j);
    __syncthreads();
  }
  for (int j = threadIdx.x; j < k; j += blockDim.x) {
    const int32_t column = order[j];
    if (column < 0 || column >= k) return;
    double v = staged ? line[column] : entry(h, narrow, row + column);
    if (j == i) {
      if (dead[from]) {
        v = mean;
      } else {
        if (v < floor_value) {
          if (floored) atomicAdd(floored, 1ull);
          v = floor_value;
        }
        v += fraction * mean;
      }
    }
    if (reversed) reversed[(k - 1 - i) * k + k - 1 - j] = v;
    if (m) m[i * k + j] = static_cast<float>(v);
  }
}

// A diagonal block [n, n] of at most 128 columns becomes the inverse of its lower Cholesky factor, zeros above; a pivot
// that is not positive sets info to 1 + its column unless something is there. In place, column after column: behind
// column j lies what is left to factor, before it the rows of the inverse so far, and one rank-1 update serves both.
// Each of 16 x 16 threads keeps 8 x 8 elements in registers.
extern "C" __global__ void __launch_bounds__(256)
    lpq_gptq_factor_leaf(double* a, int64_t ld, int n, int first, int* info) {
  __shared__ double column_of[2][128], row_of[2][128];
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  double v[8][8];
#pragma unroll
  for (int r = 0; r < 8; ++r)
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const int i = ty + 16 * r, j = tx + 16 * c;
      v[r][c] = i < n && j <= i ? a[i * ld + j] : i == j ? 1.0 : 0.0;
    }
#pragma unroll
  for (int jb = 0; jb < 8; ++jb)
    for (int jj = 0; jj < 16; ++jj) {
      const int j = 16 * jb + jj;
      if (j >= n) break;  // the same for all
      double* column = column_of[j & 1];
      double* row = row_of[j & 1];
      if (tx == jj)
#pragma unroll
        for (int r = jb; r < 8; ++r) column[ty + 16 * r] = v[r][jb];
      if (ty == jj)
#pragma unroll
        for (int c = 0; c <= jb; ++c) row[tx + 16 * c] = v[jb][c];
      __syncthreads();
      double pivot = column[j];
      if (!(pivot > 0) || pivot > 1.7e308) {
        if (threadIdx.x == 0) atomicCAS(info, 0, first + j + 1);
        pivot = 1;
      }
      const double d = rsqrt(pivot);
      double w[8];
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const int at = tx + 16 * c;
        w[c] = c < jb ? row[at] * d : c > jb ? column[at] * d : at == j ? d : (at < j ? row[at] : column[at]) * d;
      }
    // Elements right of the diagonal tiles are of no interest.
#pragma unroll
      for (int r = jb; r < 8; ++r) {
        const int i = ty + 16 * r;
        if (i > j) {
          const double l = -(column[i] * d);
#pragma unroll
          for (int c = 0; c <= r; ++c) v[r][c] = fma(l, w[c], c == jb && tx == jj ? 0.0 : v[r][c]);
        } else if (i == j) {
#pragma unroll
          for (int c = 0; c <= r; ++c) v[r][c] = w[c];
        }
      }
    }
#pragma unroll
  for (int r = 0; r < 8; ++r)
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const int i = ty + 16 * r, j = tx + 16 * c;
      if (i < n && j < n) a[i * ld + j] = j <= i ? v[r][c] : 0.0;
    }
}

// The lower left block [below, width] of a matrix = x, and the upper right one [width, below] = 0. a points to the
// corner of both, the matrix [width + below] they belong to. One block a row of that matrix.
extern "C" __global__ void lpq_gptq_factor_place(const double* x, int64_t width, int64_t below, double* a, int64_t ld) {
  const int64_t row = blockIdx.x;
  if (row < width)
    for (int64_t j = threadIdx.x; j < below; j += blockDim.x) a[row * ld + width + j] = 0;
  else
    for (int64_t j = threadIdx.x; j < width; j += blockDim.x) a[row * ld + j] = x[(row - width) * width + j];
}

// u = the inverse factor, turned back into solving order; its lower part 0. One block a row.
extern "C" __global__ void lpq_gptq_factor_turn(const double* inverse, int k, float* u) {
  const int64_t i = blockIdx.x;
  const double* row = inverse + (k - 1 - i) * k;
  for (int j = threadIdx.x; j < k; j += blockDim.x) u[i * k + j] = j < i ? 0.0f : static_cast<float>(row[k - 1 - j]);
}

}  // namespace lpq::cuda
