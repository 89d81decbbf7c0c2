// Latent attention over its packed cache, in the space of the latent: S = Q Kᵀ over latent and rotary dims, O = P C
// over the latent. A row is a query head of a query token; all read one latent, which comes to shared memory as codes
// (cp.async, one tile ahead), becomes halves there once for the block's rows, and is both K and, through
// ldmatrix.trans, the values. Tokens are split over blocks; latent_join brings the splits together in their order.
//
// Q: (lane, reg) of operand A -> row lane / 4 + 8 (reg % 2), dim 2 (lane % 4) + 8 (reg / 2) and the next; C by ldmatrix
// as operand B of S, (lane, reg) -> dim 2 (lane % 4) + 8 reg and the next, token lane / 4; by ldmatrix.trans of O,
// (lane, reg) -> token 2 (lane % 4) + 8 reg and the next, dim lane / 4. S goes through shared memory: (thread) -> row
// thread / kOfRow, tokens kOwn (thread % kOfRow) ...
#pragma once
#include "cuda/attention/found.cuh"
#include "cuda/attention/kv_prefill/halves.cuh"
#include "cuda/attention/latent_shape.h"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"

namespace lpq::cuda {

// Where 16 bytes (dims 8 chunk ..) of a row lie, so that eight rows, and eight chunks of a row, meet no bank twice.
template <int WIDTH>
__device__ __forceinline__ uint32_t latent_place(int row, int chunk) {
  return static_cast<uint32_t>(row * WIDTH * 2 + ((chunk ^ (row & 7)) << 4));
}
// Of a row of scores: where its factor is. Weights lie where the row's scores did, as halves.
template <class T>
__device__ __forceinline__ uint32_t latent_factor_place(int row) {
  return static_cast<uint32_t>(row * T::kScoreRow + T::kFactor);
}

// What a block owns: row tiles fastest, so that those that read the same tokens run together.
template <class T>
struct LatentOwn {
  int tile, split, sequence, first_row, rows, length, before, begin, end;
  __device__ __forceinline__ explicit LatentOwn(const LatentArgs& a) {
    const int block = static_cast<int>(blockIdx.x), row_tile = block % a.row_tiles, rest = block / a.row_tiles;
    split = rest % a.splits, sequence = rest / a.splits, tile = sequence * a.row_tiles + row_tile;
    first_row = row_tile * T::kRows, rows = min(a.rows - first_row, T::kRows), length = a.lengths[sequence];
    if (length < 0 || length > a.table_pages * a.page_tokens) *a.fault = 1, length = 0;
    before = length - a.queries;
    const int last = sees(a, rows - 1), tiles = last > 0 ? (last + T::kTokens - 1) / T::kTokens : 0;
    const int run = (tiles + a.splits - 1) / a.splits;
    begin = split * run, end = min(begin + run, tiles);
  }
  // One past the newest token that a row sees.
  __device__ __forceinline__ int sees(const LatentArgs& a, int row) const {
    return before + (first_row + row) / a.heads + 1;
  }
};

// Begins to copy a tile: codes and numbers as they lie, or latents of 16 bits to where products read them; rotary dims.
// Tokens behind the last one become 0.
template <class T>
__device__ __forceinline__ void latent_fetch(const LatentArgs& a, const LatentOwn<T>& own, int tile, uint32_t stage,
                                             uint32_t rope) {
  if (tile >= own.end) return;
  const int thread = static_cast<int>(threadIdx.x), first = tile * T::kTokens,
            here = min(own.length - first, T::kTokens);
  int page = a.table[static_cast<long long>(own.sequence) * a.table_pages + first / a.page_tokens];
  if (static_cast<unsigned>(page) >= static_cast<unsigned>(a.page_count)) *a.fault = 1, page = 0;
  const int token = first % a.page_tokens;
  const unsigned char* const from = a.pages + page * a.page_bytes;
  const auto bytes = [&](uint32_t to, const unsigned char* of, int all, int valid) {
#pragma unroll 1
    for (int i = 16 * thread; i < all; i += 16 * kLatentThreads)
      cp_async_16(to + static_cast<uint32_t>(i), of + i, max(0, min(16, valid - i)));
  };
  const auto rows = [&](const unsigned char* of, int dims, auto place) {
    const int c = thread % 64;
#pragma unroll 1
    for (int i = thread / 64; i < T::kTokens; i += kLatentThreads / 64)
      if (8 * c < dims) cp_async_16(place(i, c), of + (i * dims + 8 * c) * 2, i < here ? 16 : 0);
  };
  if (a.bits == 16) {
    rows(from + 2ll * token * a.latent, a.latent,
         [&](int i, int c) { return stage + latent_place<kLatentDims>(i, c); });
  } else {
    const int row = a.latent * a.bits / 8;
    bytes(stage, from + static_cast<long long>(token) * row, T::kTokens * row, here * row);
    bytes(stage + static_cast<uint32_t>(T::kTokens * row), from + a.numbers + token * a.number_row,
          T::kTokens * a.number_row, here * a.number_row);
  }
  const unsigned char* const turned = from + a.rope + 2ll * token * a.rotary;
  const int chunks = a.rotary / 8;
#pragma unroll 1
  for (int i = thread; i < T::kTokens * chunks; i += kLatentThreads)
    cp_async_16(rope + latent_place<kLatentRotary>(i / chunks, i % chunks), turned + 16 * i,
                i / chunks < here ? 16 : 0);
}

// Codes of a tile as halves, code * scale + zero, rounded once: (thread) -> dims 8 (thread % 64) .. of every fourth
// token.
template <class T, int BITS>
__device__ __forceinline__ void latent_halves(const LatentArgs& a, uint32_t from, uint32_t to) {
  const int c = static_cast<int>(threadIdx.x) % 64, row = a.latent * BITS / 8;
  if (8 * c >= a.latent) return;
  const uint32_t codes = from + static_cast<uint32_t>(BITS == 2 ? c / 2 * 4 : c * BITS),
                 numbers = from + static_cast<uint32_t>(T::kTokens * row + (8 * c >> a.group_shift) * 4);
#pragma unroll
  for (int k = 0; k < T::kTokens / 4; ++k) {
    const int token = static_cast<int>(threadIdx.x) / 64 + 4 * k;
    const uint32_t pair = ld_shared(numbers + static_cast<uint32_t>(token * a.number_row)), scale = lower_twice(pair),
                   zero = upper_twice(pair), at = codes + static_cast<uint32_t>(token * row);
    uint32_t x[4];
    const uint2 words = BITS == 8 ? ld_shared_v2(at) : make_uint2(ld_shared(at) >> (BITS == 2 ? 8 * (c & 1) : 0), 0);
    each<0, 4>([&](auto step) {
      constexpr int J = decltype(step)::value;
      const uint32_t code = BITS == 8 ? prefill_codes<BITS, J % 2>(J < 2 ? words.x : words.y)
                                      : prefill_codes<BITS, J % (16 / BITS)>(words.x);
      x[J] = fma_x2<false>(code, scale, zero);
    });
    st_shared_v4(to + latent_place<kLatentDims>(token, c), make_uint4(x[0], x[1], x[2], x[3]));
  }
}

// Queries as halves, 0 beyond the last row; place(row, chunk): where to.
template <class T, int THREADS, class Place>
__device__ __forceinline__ void latent_queries(const LatentArgs& a, const LatentOwn<T>& own, const Place& place) {
  const int chunks = (a.latent + a.rotary) / 8;
  const unsigned short* const from =
      a.q + (static_cast<long long>(own.sequence) * a.rows + own.first_row) * (8ll * chunks);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < T::kRows * chunks; i += THREADS) {
    const int row = i / chunks;
    uint4 x = make_uint4(0, 0, 0, 0);
    if (row < own.rows) x = *reinterpret_cast<const uint4*>(from + 8ll * i);
    if (a.bf16_queries) {
      const auto half = [](uint32_t w) {
        return cvt_x2<false>(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u));
      };
      x = make_uint4(half(x.x), half(x.y), half(x.z), half(x.w));
    }
    st_shared_v4(place(row, i % chunks), x);
  }
}

// What a warp multiplies of S: every kParts-th sixteen of dims, 16 tokens, rows from `row` on.
template <class T>
struct LatentShare {
  int part, token, row;  // token: the first of the tile's
  __device__ __forceinline__ LatentShare() {
    const int warp = static_cast<int>(threadIdx.x >> 5);
    part = warp % T::kParts, token = warp / T::kParts % T::kTokenWarps * 16;
    row = warp / (T::kParts * T::kTokenWarps) * 16 * T::kRowTiles;
  }
};
template <class T>
__device__ __forceinline__ void latent_operand(uint32_t (&q)[4], uint32_t queries, int row, int kc) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  ldmatrix_x4(q, queries + latent_place<kLatentWidth>(row + (lane & 15), 2 * kc + (lane >> 4)));
}

// A warp's part of S of a tile, left in shared memory; `held`: its queries, where they stay in registers.
template <class T>
__device__ __forceinline__ void latent_scores(const LatentArgs& a, const LatentShare<T>& share, uint32_t queries,
                                              const uint32_t (&held)[T::kHeld + 1][4], uint32_t keys, uint32_t rope,
                                              uint32_t scores) {
  const int lane = static_cast<int>(threadIdx.x & 31), part = share.part, row = share.row,
            token = share.token + (lane & 7) + 8 * (lane >> 4), key_chunk = lane >> 3 & 1, plain = a.latent / 16,
            steps = plain + a.rotary / 16;
  float score[T::kRowTiles][2][4] = {};
  const auto key_of = [&](int kc) {
    return kc < plain ? keys + latent_place<kLatentDims>(token, 2 * kc + key_chunk)
                      : rope + latent_place<kLatentRotary>(token, 2 * (kc - plain) + key_chunk);
  };
  const auto multiply = [&](int r, const uint32_t (&q)[4], const uint32_t (&k)[4]) {
    mma_m16n8k16<false>(score[r][0], q, k[0], k[1]);
    mma_m16n8k16<false>(score[r][1], q, k[2], k[3]);
  };
  uint32_t k[4];  // both halves of 16 dims of tokens 0 to 7, then of 8 to 15
  if constexpr (T::kHeld > 0) {
#pragma unroll
    for (int j = 0; j < T::kHeld; ++j)
      if (part + j * T::kParts < steps) {
        ldmatrix_x4(k, key_of(part + j * T::kParts));
        multiply(0, held[j], k);
      }
  } else {
#pragma unroll 4
    for (int kc = part; kc < steps; kc += T::kParts) {
      ldmatrix_x4(k, key_of(kc));
#pragma unroll
      for (int r = 0; r < T::kRowTiles; ++r) {
        uint32_t q[4];
        latent_operand<T>(q, queries, row + 16 * r, kc);
        multiply(r, q, k);
      }
    }
  }
  const uint32_t to = scores + static_cast<uint32_t>((part * T::kRows + row + (lane >> 2)) * T::kScoreRow +
                                                     (share.token + 2 * (lane & 3)) * 4);
#pragma unroll
  for (int r = 0; r < T::kRowTiles; ++r)
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c)
        st_shared_v2(to + static_cast<uint32_t>((16 * r + 8 * c) * T::kScoreRow + 32 * n),
                     __float_as_uint(score[r][n][2 * c]), __float_as_uint(score[r][n][2 * c + 1]));
}

// A thread's share of a row's softmax: sums of its tokens so far, in units of 2^most.
struct LatentRow {
  float most = -INFINITY, total = 0;
};
// Scores of a tile become weights, and a factor of what the row's sums were. Tokens from `seen` on have none.
template <class T>
__device__ __forceinline__ void latent_weights(float scale, int seen, uint32_t scores, LatentRow& state) {
  const int thread = static_cast<int>(threadIdx.x), row = thread / T::kOfRow, first = thread % T::kOfRow * T::kOwn;
  float score[T::kOwn] = {};
#pragma unroll
  for (int part = 0; part < T::kParts; ++part) {
    const uint32_t at = scores + static_cast<uint32_t>((part * T::kRows + row) * T::kScoreRow + 4 * first);
#pragma unroll
    for (int i = 0; i < T::kOwn; i += 2) {
      const uint2 two = ld_shared_v2(at + static_cast<uint32_t>(4 * i));
      score[i] += __uint_as_float(two.x), score[i + 1] += __uint_as_float(two.y);
    }
  }
  float peak = -INFINITY;
#pragma unroll
  for (int i = 0; i < T::kOwn; ++i) {
    score[i] = first + i < seen ? score[i] * scale : -INFINITY;
    peak = fmaxf(peak, score[i]);
  }
#pragma unroll
  for (int mask = 1; mask < T::kOfRow; mask *= 2) peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, mask));
  const float now = fmaxf(state.most, peak), less = now == -INFINITY ? 0 : -now,  // no token yet: weights of 0
      factor = state.most == -INFINITY ? 0 : ex2_approx(state.most + less);
  state.most = now, state.total *= factor;
  // All have read the row whose place weights take.
  __syncwarp();
#pragma unroll
  for (int i = 0; i < T::kOwn; i += 2) {
    const float low = ex2_approx(score[i] + less), high = ex2_approx(score[i + 1] + less);
    state.total += low + high;
    st_shared(scores + static_cast<uint32_t>(row * T::kScoreRow + (first + i) * 2), cvt_x2<false>(low, high));
  }
  if (thread % T::kOfRow == 0) st_shared(scores + latent_factor_place<T>(row), __float_as_uint(factor));
}

// O += P C of a tile: all rows, the warp's 64 dims.
template <class T>
__device__ __forceinline__ void latent_values(uint32_t scores, uint32_t halves, float (&out)[T::kTiles][8][4]) {
  const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5);
  float factor[T::kTiles][2];
  bool less = false;
#pragma unroll
  for (int r = 0; r < T::kTiles; ++r)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      factor[r][c] = __uint_as_float(ld_shared(scores + latent_factor_place<T>(16 * r + 8 * c + (lane >> 2))));
      less = less || factor[r][c] != 1;
    }
  if (__any_sync(0xffffffffu, less))
#pragma unroll
    for (int r = 0; r < T::kTiles; ++r)
#pragma unroll
      for (int m = 0; m < 8; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) out[r][m][i] *= factor[r][i >> 1];
#pragma unroll
  for (int n = 0; n < T::kTokens / 16; ++n) {
    uint32_t p[T::kTiles][4];
#pragma unroll
    for (int r = 0; r < T::kTiles; ++r)
      ldmatrix_x4(p[r],
                  scores + static_cast<uint32_t>((16 * r + (lane & 15)) * T::kScoreRow + 32 * n + 16 * (lane >> 4)));
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      uint32_t v[4];
      ldmatrix_x4_trans(v, halves + latent_place<kLatentDims>(16 * n + (lane & 15), 8 * warp + 2 * m + (lane >> 4)));
#pragma unroll
      for (int r = 0; r < T::kTiles; ++r) {
        mma_m16n8k16<false>(out[r][2 * m], p[r], v[0], v[1]);
        mma_m16n8k16<false>(out[r][2 * m + 1], p[r], v[2], v[3]);
      }
    }
  }
}

// Dims at `at` and the next of y.
__device__ __forceinline__ void latent_write(const LatentArgs& a, long long at, float low, float high) {
  if (a.store == kKvStoreF32) *reinterpret_cast<float2*>(static_cast<float*>(a.y) + at) = make_float2(low, high);
  else
    *reinterpret_cast<uint32_t*>(static_cast<unsigned short*>(a.y) + at) =
        a.store == kKvStoreBf16 ? cvt_x2<true>(low, high) : cvt_x2<false>(low, high);
}

// y, or where there are several splits what this one found.
template <class T>
__device__ __forceinline__ void latent_store(const LatentArgs& a, const LatentOwn<T>& own, uint32_t scores,
                                             const LatentRow& state, const float (&out)[T::kTiles][8][4]) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  float* const record = a.partial + (static_cast<long long>(own.tile) * a.splits + own.split) * T::kRecord;
  float total = state.total;
#pragma unroll
  for (int mask = 1; mask < T::kOfRow; mask *= 2) total += __shfl_xor_sync(0xffffffffu, total, mask);
  if (thread % T::kOfRow == 0) {
    const int row = thread / T::kOfRow;
    st_shared(scores + latent_factor_place<T>(row), __float_as_uint(total > 0 ? __fdiv_rn(1.0f, total) : 0));
    if (a.splits > 1) record[row] = state.most, record[T::kRows + row] = total;
  }
  __syncthreads();
  if (64 * warp >= a.latent) return;
#pragma unroll
  for (int r = 0; r < T::kTiles; ++r)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int row = 16 * r + 8 * c + (lane >> 2), dim = 64 * warp + 2 * (lane & 3);
      if (row >= own.rows) continue;
      const float inverse = __uint_as_float(ld_shared(scores + latent_factor_place<T>(row)));
      const long long at = (static_cast<long long>(own.sequence) * a.rows + own.first_row + row) * a.latent + dim;
#pragma unroll
      for (int m = 0; m < 8; ++m) {
        const float low = out[r][m][2 * c], high = out[r][m][2 * c + 1];
        if (a.splits == 1) latent_write(a, at + 8 * m, low * inverse, high * inverse);
        else
          *reinterpret_cast<float2*>(record + 2 * T::kRows + row * kLatentDims + dim + 8 * m) = make_float2(low, high);
      }
    }
}

template <class T>
__device__ __forceinline__ void latent_decode(const LatentArgs& a) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread >> 5;
  const LatentOwn<T> own(a);
  const uint32_t queries = shared_address(dynamic_shared()), halves = queries + T::kLatents, rope = queries + T::kRope,
                 scores = queries + T::kScores, stage = queries + T::kStage;
  const bool exact = a.bits == 16;
  // Latents of 16 bits come to the two places in turn.
  const auto to = [&](int tile) { return exact && (tile - own.begin) % 2 == 0 ? halves : stage; };
  const auto turned = [&](int tile) { return rope + static_cast<uint32_t>((tile - own.begin) % 2 * T::kRopeTile); };
  latent_fetch<T>(a, own, own.begin, to(own.begin), turned(own.begin));
  cp_async_commit();
  latent_queries<T, kLatentThreads>(
      a, own, [&](int row, int chunk) { return queries + latent_place<kLatentWidth>(row, chunk); });
  const int seen = min(own.sees(a, thread / T::kOfRow), own.length);
  const LatentShare<T> share;
  uint32_t held[T::kHeld + 1][4];
  if constexpr (T::kHeld > 0) {
    __syncthreads();  // queries are there
#pragma unroll
    for (int j = 0; j < T::kHeld; ++j) latent_operand<T>(held[j], queries, share.row, share.part + j * T::kParts);
  }
  LatentRow state;
  float out[T::kTiles][8][4] = {};
#pragma unroll 1
  for (int tile = own.begin; tile < own.end; ++tile) {
    cp_async_wait<0>();
    __syncthreads();  // the tile has come, and the one before has been read
    const uint32_t read = exact ? to(tile) : halves;
    if (!exact) {
      if (a.bits == 8) latent_halves<T, 8>(a, stage, halves);
      else if (a.bits == 4) latent_halves<T, 4>(a, stage, halves);
      else latent_halves<T, 2>(a, stage, halves);
      __syncthreads();
    }
    latent_fetch<T>(a, own, tile + 1, to(tile + 1), turned(tile + 1));
    cp_async_commit();
    latent_scores<T>(a, share, queries, held, read, turned(tile), scores);
    __syncthreads();
    latent_weights<T>(a.scale, seen - tile * T::kTokens, scores, state);
    __syncthreads();
    if (64 * warp < a.latent) latent_values<T>(scores, read, out);
  }
  cp_async_wait<0>();
  __syncthreads();
  latent_store<T>(a, own, scores, state, out);
}

// Brings the splits of a tile of rows together: (thread) -> four dims of a row, in blocks of kLatentThreads.
template <class T>
__device__ __forceinline__ void latent_join(const LatentArgs& a) {
  constexpr int kBlocks = T::kRows * kLatentDims / 4 / kLatentThreads;  // of a tile
  const int tile = static_cast<int>(blockIdx.x) / kBlocks,
            i = 4 * (static_cast<int>(blockIdx.x) % kBlocks * kLatentThreads + static_cast<int>(threadIdx.x)),
            first_row = tile % a.row_tiles * T::kRows, row = i / kLatentDims, dim = i % kLatentDims;
  if (first_row + row >= a.rows || dim >= a.latent) return;
  const Found found = join_splits<T::kRecord, T::kRows>(
      a.partial + static_cast<long long>(tile) * a.splits * T::kRecord, a.splits, row, i);
  const float inverse = found.total > 0 ? __fdiv_rn(1.0f, found.total) : 0;
  const long long at = (static_cast<long long>(tile / a.row_tiles) * a.rows + first_row + row) * a.latent + dim;
  latent_write(a, at, found.sum[0] * inverse, found.sum[1] * inverse);
  latent_write(a, at + 2, found.sum[2] * inverse, found.sum[3] * inverse);
}

}  // namespace lpq::cuda
