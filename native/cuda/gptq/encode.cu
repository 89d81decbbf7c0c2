// From the solver's floats to what is stored; and how far the result is from the weights.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/gptq/common.cuh"
#include "cuda/quant/grid.cuh"
#include "cuda/quant/number.cuh"

namespace lpq::cuda {
namespace {

template <bool kFloat>
__device__ void encode_row(const float* level, const int32_t* order, int k, GridSpec spec, uint8_t* codes, int staged,
                           uint8_t* line, uint32_t* fault) {
  const DeviceGrid<kFloat> grid(spec);
  const GridStep step = grid.step(1.0f, 0.0f);  // levels are grid points: rounding finds their codes exactly
  const int64_t base = static_cast<int64_t>(blockIdx.x) * k;
  for (int j = threadIdx.x; j < k; j += blockDim.x) {
    uint32_t code;
    grid.nearest(level[base + j], step, &code);
    const int32_t to = order[j];
    if (to >= 0 && to < k) (staged ? line : codes + base)[to] = static_cast<uint8_t>(code);
    else *fault = 1;
  }
  if (!staged) return;
  __syncthreads();
  for (int j = threadIdx.x; j < k; j += blockDim.x) codes[base + j] = line[j];
}

}  // namespace

// codes[n][order[j]] = the code of level[n][j]; one block a row.
extern "C" __global__ void lpq_gptq_encode(const float* level, const int32_t* order, int k, GridSpec spec,
                                           uint8_t* codes, int staged, uint32_t* fault) {
  extern __shared__ uint8_t bytes[];
  if (spec.is_float) encode_row<true>(level, order, k, spec, codes, staged, bytes, fault);
  else encode_row<false>(level, order, k, spec, codes, staged, bytes, fault);
}

// dtype: NumberType. counts: [2] scales that became infinite; that lie below `least`, what the dtype holds precisely.
extern "C" __global__ void lpq_gptq_store_scales(const float* scale, int64_t count, int dtype, float unit, float least,
                                                 uint8_t* stored, float* rounded, unsigned long long* counts) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const float x = __fdiv_rn(scale[i], unit);
    float held = write_number(dtype, stored, i, x);
    if (held == 0.0f && dtype == kNumberF16) held = write_number(dtype, stored, i, copysignf(0x1p-24f, x));  // never 0
    if (!isfinite(held)) atomicAdd(&counts[0], 1ull);
    if (fabsf(x) < least && dtype != kNumberE4m3) atomicAdd(&counts[1], 1ull);
    rounded[i] = held * unit;
  }
}

extern "C" __global__ void lpq_gptq_counts_to_f64(const unsigned long long* counts, int n, double* out) {
  if (static_cast<int>(threadIdx.x) < n) out[threadIdx.x] = static_cast<double>(counts[threadIdx.x]);
}

// f32 of a metric in f64, or in f32 when narrow.
extern "C" __global__ void lpq_gptq_narrow(const void* x, int narrow, float* y, int64_t count) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    y[i] = narrow ? static_cast<const float*>(x)[i] : static_cast<float>(static_cast<const double*>(x)[i]);
}

// d = w, or w - q where q is not null, in scaled units as f16 (block.h) with an exponent of its own for each row; one
// block a row. Types: NumberType (f32, f16, bf16).
extern "C" __global__ void lpq_gptq_difference(const uint8_t* w, int w_type, const uint8_t* q, int q_type, int k,
                                               const int32_t* column_exponent, uint16_t* d, int32_t* row_exponent) {
  __shared__ float shared_most[8];
  const int64_t base = static_cast<int64_t>(blockIdx.x) * k;
  const auto value = [&](int j) {
    return read_number(w_type, w, base + j) - (q ? read_number(q_type, q, base + j) : 0.0f);
  };
  float most = 0;
  for (int j = threadIdx.x; j < k; j += blockDim.x) most = fmaxf(most, fabsf(value(j)));
  for (int mask = 16; mask > 0; mask >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, mask));
  if (threadIdx.x % 32 == 0) shared_most[threadIdx.x / 32] = most;
  __syncthreads();
  for (int i = 0; i < static_cast<int>(blockDim.x / 32); ++i) most = fmaxf(most, shared_most[i]);
  const int shift = most > 0 && isfinite(most) ? min(14 - exponent_of(most), 120) : 0;
  if (threadIdx.x == 0) row_exponent[blockIdx.x] = shift;
  const int top = column_exponent[k];
  for (int j = threadIdx.x; j < k; j += blockDim.x) {
    const float v = value(j) * power_of_two(shift) * power_of_two(column_exponent[j] - top);
    reinterpret_cast<__half*>(d)[base + j] = __float2half_rn(v);
  }
}

// sums[n] = sum over j of d[n][j] product[n][j], in true units; one block a row.
extern "C" __global__ void lpq_gptq_row_form(const uint16_t* d, const float* product, int k,
                                             const int32_t* column_exponent, const int32_t* row_exponent,
                                             int metric_shift, double* sums) {
  __shared__ double shared_sum[8];
  const int64_t base = static_cast<int64_t>(blockIdx.x) * k;
  double sum = 0;
  for (int j = threadIdx.x; j < k; j += blockDim.x)
    sum += static_cast<double>(__half2float(reinterpret_cast<const __half*>(d)[base + j])) *
           static_cast<double>(product[base + j]);
  for (int mask = 16; mask > 0; mask >>= 1) sum += __shfl_xor_sync(~0u, sum, mask);
  if (threadIdx.x % 32 == 0) shared_sum[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < static_cast<int>(blockDim.x / 32); ++w) sum += shared_sum[w];
    sums[blockIdx.x] = ldexp(sum, 2 * column_exponent[k] - 2 * row_exponent[blockIdx.x] - metric_shift);
  }
}

// out[0] = sum of x, in an order that depends on count alone; one block.
extern "C" __global__ void lpq_gptq_sum(const double* x, int64_t count, double* out) {
  __shared__ double part[1024];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += x[i];
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) *out = part[0];
}

}  // namespace lpq::cuda
