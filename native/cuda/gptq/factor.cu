// Moving the Hessian into solving order and its factor back.
#include <cstdint>

namespace lpq::cuda {

// facts: [0] mean and [1] largest of diag(H), [2] first column that is not finite or -1, [3] 1 unless order is a
// permutation. dead[j] = H_jj == 0. seen: U32 [k], zeros. One block.
extern "C" __global__ void lpq_gptq_factor_facts(const double* h, const int32_t* order, int k, uint32_t* seen, uint8_t* dead, double* diagonal, double* facts) {
  __shared__ double sums[32], mosts[32];
  __shared__ int first;
  __shared__ int wrong;
  if (threadIdx.x == 0) first = k, wrong = 0;
  __syncthreads();
  double sum = 0, most = 0;
  for (int j = threadIdx.x; j < k; j += blockDim.x) {
    const double d = h[static_cast<int64_t>(j) * k + j];
    diagonal[j] = d;
    if (!isfinite(d)) atomicMin(&first, j);
    dead[j] = d == 0.0;
    sum += d;
    most = d > most ? d : most;
    const int32_t o = order[j];
    if (o < 0 || o >= k || atomicAdd(&seen[o], 1u) != 0) wrong = 1;
  }
  for (int mask = 16; mask > 0; mask >>= 1) {
    sum += __shfl_xor_sync(~0u, sum, mask);
    const double other = __shfl_xor_sync(~0u, most, mask);
    most = other > most ? other : most;
  }
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum, mosts[threadIdx.x / 32] = most;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < static_cast<int>(blockDim.x / 32); ++w) {
      sum += sums[w];
      most = mosts[w] > most ? mosts[w] : most;
    }
    const double mean = sum / k;
    facts[0] = mean == 0 ? 1 : mean;  // every channel is dead: any positive diagonal serves
    facts[1] = most;
    facts[2] = first < k ? first : -1;
    facts[3] = wrong;
  }
}

// m = P H P^T + damping in f32, reversed = the same from the far end in f64. floored counts diagonal entries below the
// floor. One block a row; staged: the row of H goes through shared memory.
extern "C" __global__ void lpq_gptq_factor_gather(const double* h, const int32_t* order, int k, const uint8_t* dead, double mean, double fraction, double floor_value,
                                                  double* reversed, float* m, unsigned long long* floored, int staged) {
  extern __shared__ double line[];
  const int64_t i = blockIdx.x;
  const int32_t from = order[i];
  const double* row = h + static_cast<int64_t>(from) * k;
  if (staged) {
    for (int j = threadIdx.x; j < k; j += blockDim.x) line[j] = row[j];
    __syncthreads();
    row = line;
  }
  double* out = reversed + (k - 1 - i) * k;
  for (int j = threadIdx.x; j < k; j += blockDim.x) {
    double v = row[order[j]];
    if (j == i) {
      if (dead[from]) {
        v = mean;
      } else {
        if (v < floor_value) {
          atomicAdd(floored, 1ull);
          v = floor_value;
        }
        v += fraction * mean;
      }
    }
    out[k - 1 - j] = v;
    m[i * k + j] = static_cast<float>(v);
  }
}

// u = the inverse factor, turned back into solving order; its lower part 0. One block a row.
extern "C" __global__ void lpq_gptq_factor_turn(const double* inverse, int k, float* u) {
  const int64_t i = blockIdx.x;
  const double* row = inverse + (k - 1 - i) * k;
  for (int j = threadIdx.x; j < k; j += blockDim.x) u[i * k + j] = j < i ? 0.0f : static_cast<float>(row[k - 1 - j]);
}

}  // namespace lpq::cuda
