// Operands of split.h: rows in units of powers of two, as two f16 planes.
#include "cuda/gptq/common.cuh"

namespace lpq::cuda {
namespace {

struct Row {
  const void* data;
  int narrow;
  int64_t base;
  const int32_t *order, *units;
  int times;
  __device__ Row(const void* x, int narrow_, int64_t ld, const int32_t* order_, int64_t row, const int32_t* units_,
                 int times_)
      : data(x),
        narrow(narrow_),
        base((order_ ? order_[row] : row) * ld),
        order(order_),
        units(units_),
        times(times_) {}
  __device__ float operator()(int j) const {
    const int64_t at = base + (order ? order[j] : j);
    const float v =
        narrow ? static_cast<const float*>(data)[at] : static_cast<float>(static_cast<const double*>(data)[at]);
    return units ? v * power_of_two(times * units[j]) : v;
  }
};

}  // namespace

// One block a row.
extern "C" __global__ void __launch_bounds__(256)
    lpq_gptq_row_units(const void* x, int narrow, int64_t ld, const int32_t* order, int64_t row0, int columns,
                       const int32_t* units, int times, int32_t* exponents) {
  __shared__ float shared_most[8];
  const Row row(x, narrow, ld, order, row0 + blockIdx.x, units, times);
  float most = 0;
#pragma unroll 4
  for (int j = threadIdx.x; j < columns; j += 256) most = fmaxf(most, fabsf(row(j)));
  for (int mask = 16; mask > 0; mask >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, mask));
  if (threadIdx.x % 32 == 0) shared_most[threadIdx.x / 32] = most;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int w = 1; w < 8; ++w) most = fmaxf(most, shared_most[w]);
  exponents[blockIdx.x] = most > 0 ? min(14 - exponent_of(most), 100) : 100;
}

// lo may be null. One block a row.
extern "C" __global__ void __launch_bounds__(256)
    lpq_gptq_split_rows(const void* x, int narrow, int64_t ld, const int32_t* order, int64_t row0, int columns,
                        const int32_t* units, int times, const int32_t* exponents, uint16_t* hi, uint16_t* lo) {
  const Row row(x, narrow, ld, order, row0 + blockIdx.x, units, times);
  const float up = power_of_two(exponents[blockIdx.x]);
  const int64_t base = static_cast<int64_t>(blockIdx.x) * columns;
#pragma unroll 4
  for (int j = threadIdx.x; j < columns; j += 256) {
    __half h, l;
    split_half(row(j) * up, h, l);
    reinterpret_cast<__half*>(hi)[base + j] = h;
    if (lo) reinterpret_cast<__half*>(lo)[base + j] = l;
  }
}

// exponent[j] = -floor(log2 of the largest entry of column j); 0 for a column of zeros. Blocks of 32 columns, blockDim
// (32, 32).
extern "C" __global__ void lpq_gptq_column_units(const float* x, int k, int32_t* exponent) {
  __shared__ float most[32][33];
  const int column = blockIdx.x * 32 + threadIdx.x;
  float m = 0;
  if (column < k)
#pragma unroll 4
    for (int i = threadIdx.y; i < k; i += 32) m = fmaxf(m, fabsf(x[static_cast<int64_t>(i) * k + column]));
  most[threadIdx.y][threadIdx.x] = m;
  __syncthreads();
  if (threadIdx.y > 0 || column >= k) return;
  for (int i = 1; i < 32; ++i) m = fmaxf(m, most[i][threadIdx.x]);
  exponent[column] = m > 0 ? -exponent_of(m) : 0;
}

// to = (add: to +) weight * in * 2^-(times units[j] + first[n] + second[n] + third[n]); rows of `to` are ld apart, f64
// or f32 (narrow). second, third and units may be null. One block a row.
extern "C" __global__ void __launch_bounds__(256)
    lpq_gptq_leave_units(const float* in, int columns, const int32_t* units, int times, const int32_t* first,
                         const int32_t* second, const int32_t* third, double weight, int add, void* to, int narrow,
                         int64_t ld) {
  const int n = blockIdx.x;
  const int shift = first[n] + (second ? second[n] : 0) + (third ? third[n] : 0);
  const int64_t base = static_cast<int64_t>(n) * columns;
  const float factor = static_cast<float>(weight);
#pragma unroll 4
  for (int j = threadIdx.x; j < columns; j += 256) {
    // Two steps: the sum of the exponents may leave the range of one.
    const float value = in[base + j] * power_of_two(-shift) * power_of_two(units ? -times * units[j] : 0) * factor;
    const int64_t at = n * ld + j;
    if (narrow) static_cast<float*>(to)[at] = add ? static_cast<float*>(to)[at] + value : value;
    else static_cast<double*>(to)[at] = add ? static_cast<double*>(to)[at] + value : value;
  }
}

}  // namespace lpq::cuda
