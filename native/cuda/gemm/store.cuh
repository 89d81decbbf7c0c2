// Outputs of a warp on their way to y: through shared memory, so that they leave as sixteen bytes a lane, eight
// neighbouring outputs of a token.
//
// 16 P rows by 8 tokens, or 16 by 16 (P = 1), stand at `staging` in 512 bytes: a token's 2 P chunks of eight rows,
// turned by the token's number so that neither side meets a bank twice:
//   (lane, reg) of FragmentC, half h of the rows -> chunk 2 h + reg / 2, place lane / 4; token 2 (lane % 4) + reg % 2
#pragma once
#include <climits>

#include "cuda/gemm/fragment.cuh"
#include "cuda/ptx/features.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/shared_memory.cuh"

namespace lpq::cuda {

// Where 16-bit outputs go: y [tokens, rows]; vectors: its rows start at multiples of 16 bytes.
struct Outputs {
  uint16_t* y;
  int tokens, rows;
  bool vectors;

  // Eight neighbours from row n of token m on, as far as there are such rows.
  __device__ __forceinline__ void store(int m, int n, uint4 eight) const {
    uint16_t* const to = y + static_cast<long long>(m) * rows + n;
    if (vectors && n + 8 <= rows) {
      *reinterpret_cast<uint4*>(to) = eight;
    } else {
      const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (n + i < rows) to[i] = static_cast<uint16_t>(words[i >> 1] >> 16 * (i & 1));
    }
  }
};

template <int P>
__device__ __forceinline__ uint32_t staged_at(int token, int chunk) {
  return static_cast<uint32_t>(token * (32 * P) + ((chunk ^ (P == 2 ? token >> 1 & 3 : token >> 2 & 1)) << 4));
}

// What U parts of 512 bytes hold, from row n0 and token `token0` on; tokens before `least` are left out.
template <int P, int U>
__device__ __forceinline__ void store_staged(const Outputs& out, int n0, int token0, int least, uint32_t staging,
                                             int lane) {
  const int token = lane / (2 * P), chunk = lane % (2 * P);
#pragma unroll
  for (int u = 0; u < U; ++u) {
    const int m = token0 + 16 / P * u + token;
    const uint4 eight = ld_shared_v4(staging + u * 512 + staged_at<P>(token, chunk));
    if (m < out.tokens && m >= least) out.store(m, n0 + 8 * chunk, eight);
  }
}

#if LPQ_HAS_TMA
// The same of words in registers: words(u, i), a pair of tokens, is register pair i % 2 of half i / 2 (P = 2), or of 8
// tokens i / 2 (P = 1), of part u.
template <int P, int U, class Words>
__device__ __forceinline__ void store_transposed(const Outputs& out, int n0, int token0, int least, uint32_t staging,
                                                 int lane, const Words& words) {
  const int matrix = Matrix8x8::addressed(lane), row = Matrix8x8::addressed_row(lane);
  __syncwarp();
#pragma unroll
  for (int u = 0; u < U; ++u) {
    const uint32_t r[4] = {words(u, 0), words(u, 1), words(u, 2), words(u, 3)};
    stmatrix_x4_trans(staging + u * 512 + staged_at<P>(P == 2 ? row : 8 * (matrix >> 1) + row, matrix % (2 * P)), r);
  }
  __syncwarp();
  store_staged<P, U>(out, n0, token0, least, staging, lane);
}
#endif

}  // namespace lpq::cuda
