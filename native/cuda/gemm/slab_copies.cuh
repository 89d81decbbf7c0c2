// Activations of a step by cp.async, a share a thread: slabs of 64 k, 128 bytes a token, its sixteens turned by the
// token's number so that neither the copies nor ldmatrix meet a bank twice:
//   (token, k) -> slab k / 64, byte 128 token + 16 ((k / 8 % 8) ^ (token % 8)) + 2 (k % 8)
#pragma once
#include "cuda/ptx/cp_async.cuh"

namespace lpq::cuda {

// T: tiles of 8 tokens; a step has 8 << LogChunks of k for each of 2^log_k warps along K.
template <int T, int LogChunks>
struct SlabCopies {
  const uint16_t* const x;  // [m, k]
  const int m, k, log_n, log_k;
  int chunk = threadIdx.x & ((1 << (LogChunks + log_k)) - 1), row = threadIdx.x >> (LogChunks + log_k),
      rows = (32 >> LogChunks) << log_n;
  long long jump = static_cast<long long>(rows) * k;
  const uint16_t* from;
  int left, tokens;

  // From `token` and k0 on.
  __device__ __forceinline__ void aim(int token, int k0) {
    from = x + static_cast<long long>(token + row) * k + k0 + chunk * 8;
    left = k - k0 - chunk * 8;
    tokens = min(8 * T, m - token);
  }
  __device__ __forceinline__ void copy(uint32_t stage) const {
    const uint16_t* at = from;
    const uint32_t slab = stage + (chunk >> 3) * (8 * T * 128);
    const int bytes = left > 0 ? 16 : 0;
    for (int token = row; token < tokens; token += rows, at += jump)
      cp_async_16(slab + token * 128 + (((chunk ^ token) & 7) << 4), at, bytes);
  }
  __device__ __forceinline__ void advance(int step_k) { from += step_k, left -= step_k; }
};

}  // namespace lpq::cuda
