// Attention of many query tokens over a packed cache: the newest of each sequence, packed or in the tail, each of which
// sees tokens up to itself. Keys and values of 64 tokens (a macro-tile of TurboMind, Figure 10) are made halves in
// shared memory once for 64 rows, a row being a query head of a query token; then S = Q Kᵀ and O = P V as in
// FlashAttention-2, 16 rows a warp. Forms differ in the loader alone, which is told at run time: a kernel a head dim
// serves all.
//
// Q: (lane, reg) of operand A -> row lane / 4 + 8 (reg % 2), dim 2 (lane % 4) + 8 (reg / 2) and the next; K by
// ldmatrix, V by ldmatrix.trans as operand B, (lane, reg) -> k = 2 (lane % 4) + 8 reg and the next, n = lane / 4.
#pragma once
#include "cuda/attention/kv_prefill/load.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

constexpr int kPrefillRows = 64, kPrefillTokens = 64, kPrefillThreads = 128;
template <int DIMS>
constexpr int kPrefillShared = (kPrefillRows + 2 * kPrefillTokens) * DIMS * 2;

template <int DIMS>
__device__ __forceinline__ uint32_t prefill_place(int row, int chunk) {
  return static_cast<uint32_t>(row * DIMS * 2 + ((chunk ^ (row & 7)) << 4));
}

// Blocks: tiles of 64 rows, kv heads, sequences. Row query * group + head of the group.
template <int DIMS>
__device__ __forceinline__ void kv_prefill(const KvDecodeArgs& a) {
  constexpr int chunks = DIMS / 8;
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5, t = lane & 3,
            group = a.heads / a.kv_heads, rows = a.queries * group;
  const int tiles = (rows + kPrefillRows - 1) / kPrefillRows;
  int index = static_cast<int>(blockIdx.x);
  // Long walks first, so that the last blocks to run are short.
  const int first_row = (tiles - 1 - index % tiles) * kPrefillRows, head = index / tiles % a.kv_heads,
            sequence = index / tiles / a.kv_heads;
  int length = a.lengths[sequence], tail = a.tails[sequence];
  const int tile = a.words ? 1 : 512 / a.key_bits;
  if (length < 0 || length > a.table_pages * a.page_tokens || length % tile != 0 || tail < 0 || tail > a.room)
    *a.fault = 1, length = tail = 0;
  const int total = length + tail, before = total - a.queries;  // what the first query sees, but itself
  const int* const table = a.table + static_cast<long long>(sequence) * a.table_pages;
  const uint32_t queries = shared_address(dynamic_shared()), keys = queries + kPrefillRows * DIMS * 2,
                 values = keys + kPrefillTokens * DIMS * 2;
  const auto row_at = [&](int row) {
    const int query = row / group;
    return ((static_cast<long long>(sequence) * a.queries + query) * a.heads + head * group + row - query * group) *
           DIMS;
  };
  for (int i = thread; i < kPrefillRows * chunks; i += kPrefillThreads) {
    const int row = first_row + i / chunks;
    const uint4 x =
        row < rows ? *reinterpret_cast<const uint4*>(a.q + row_at(row) + i % chunks * 8) : make_uint4(0, 0, 0, 0);
    st_shared_v4(queries + prefill_place<DIMS>(i / chunks, i % chunks), x);
  }
  // One past the newest token that this lane's rows g and g + 8 see.
  int sees[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) sees[c] = before + (first_row + 16 * warp + (lane >> 2) + 8 * c) / group + 1;
  const int last_row = first_row + kPrefillRows < rows ? first_row + kPrefillRows - 1 : rows - 1,
            end = before + last_row / group + 1;
  float out[DIMS / 8][4] = {}, most[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  for (int first = 0; first < end; first += kPrefillTokens) {
    __syncthreads();  // the tiles have been read
    for (int i = thread; i < 2 * kPrefillTokens * chunks; i += kPrefillThreads) {
      const bool value = i >= kPrefillTokens * chunks;
      const int row = i / chunks % kPrefillTokens, d = i % chunks * 8, token = first + row;
      uint4 x = make_uint4(0, 0, 0, 0);
      if (token < length) {
        const int index_of = token / a.page_tokens;
        int page = table[index_of];
        if (static_cast<unsigned>(page) >= static_cast<unsigned>(a.pages)) *a.fault = 1, page = 0;
        x = prefill_load<DIMS>(a, value, page, token - index_of * a.page_tokens, head, d);
      } else if (token < total) {
        x = *reinterpret_cast<const uint4*>(
            (value ? a.tail_values : a.tail_keys) +
            ((static_cast<long long>(sequence) * a.room + token - length) * a.kv_heads + head) * DIMS + d);
      }
      st_shared_v4((value ? values : keys) + prefill_place<DIMS>(row, i % chunks), x);
    }
    __syncthreads();
    float score[kPrefillTokens / 8][4] = {};
#pragma unroll
    for (int kc = 0; kc < DIMS / 16; ++kc) {
      uint32_t q[4];
      ldmatrix_x4(q, queries + prefill_place<DIMS>(16 * warp + (lane & 15), 2 * kc + (lane >> 4)));
#pragma unroll
      for (int n = 0; n < kPrefillTokens / 16; ++n) {
        uint32_t k[4];  // both halves of 16 dims of tokens 0 to 7, then of 8 to 15
        ldmatrix_x4(k, keys + prefill_place<DIMS>(16 * n + (lane & 7) + 8 * (lane >> 4), 2 * kc + (lane >> 3 & 1)));
        mma_m16n8k16<false>(score[2 * n], q, k[0], k[1]);
        mma_m16n8k16<false>(score[2 * n + 1], q, k[2], k[3]);
      }
    }
    float peak[2] = {most[0], most[1]};
#pragma unroll
    for (int n = 0; n < kPrefillTokens / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        score[n][i] = first + 8 * n + 2 * t + (i & 1) < sees[i >> 1] ? score[n][i] * a.scale : -INFINITY;
        peak[i >> 1] = fmaxf(peak[i >> 1], score[n][i]);
      }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int mask = 1; mask < 4; mask *= 2) peak[c] = fmaxf(peak[c], __shfl_xor_sync(0xffffffffu, peak[c], mask));
      if (peak[c] == -INFINITY) peak[c] = 0;  // a row that has seen no token yet: weights of 0
      const float shrink = ex2_approx(most[c] - peak[c]);
      most[c] = peak[c], sum[c] *= shrink;
#pragma unroll
      for (int m = 0; m < DIMS / 8; ++m) out[m][2 * c] *= shrink, out[m][2 * c + 1] *= shrink;
    }
#pragma unroll
    for (int n = 0; n < kPrefillTokens / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) score[n][i] = ex2_approx(score[n][i] - most[i >> 1]), sum[i >> 1] += score[n][i];
#pragma unroll
    for (int n = 0; n < kPrefillTokens / 16; ++n) {
      const uint32_t p[4] = {cvt_x2<false>(score[2 * n][0], score[2 * n][1]),
                             cvt_x2<false>(score[2 * n][2], score[2 * n][3]),
                             cvt_x2<false>(score[2 * n + 1][0], score[2 * n + 1][1]),
                             cvt_x2<false>(score[2 * n + 1][2], score[2 * n + 1][3])};
#pragma unroll
      for (int m = 0; m < DIMS / 16; ++m) {
        uint32_t v[4];
        ldmatrix_x4_trans(v, values + prefill_place<DIMS>(16 * n + (lane & 15), 2 * m + (lane >> 4)));
        mma_m16n8k16<false>(out[2 * m], p, v[0], v[1]);
        mma_m16n8k16<false>(out[2 * m + 1], p, v[2], v[3]);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < 2; ++c) {
#pragma unroll
    for (int mask = 1; mask < 4; mask *= 2) sum[c] += __shfl_xor_sync(0xffffffffu, sum[c], mask);
    const int row = first_row + 16 * warp + (lane >> 2) + 8 * c;
    if (row >= rows) continue;
    const long long at = row_at(row) + 2 * t;
#pragma unroll
    for (int m = 0; m < DIMS / 8; ++m) {
      const float low = sum[c] > 0 ? __fdiv_rn(out[m][2 * c], sum[c]) : 0.0f,
                  high = sum[c] > 0 ? __fdiv_rn(out[m][2 * c + 1], sum[c]) : 0.0f;
      if (a.store == kKvStoreF32) {
        float* const to = static_cast<float*>(a.y) + at + 8 * m;
        to[0] = low, to[1] = high;
      } else {
        *reinterpret_cast<uint32_t*>(static_cast<unsigned short*>(a.y) + at + 8 * m) =
            a.store == kKvStoreBf16 ? cvt_x2<true>(low, high) : cvt_x2<false>(low, high);
      }
    }
  }
}

#define LPQ_KV_PREFILL(dims)                                                     \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kPrefillThreads)       \
      lpq_kv_prefill_##dims(const __grid_constant__ lpq::cuda::KvDecodeArgs a) { \
    lpq::cuda::kv_prefill<dims>(a);                                              \
  }

}  // namespace lpq::cuda
