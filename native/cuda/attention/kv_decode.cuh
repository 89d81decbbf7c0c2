// Decode attention over packed keys and values (BitDecoding, section IV; formats/kv/spec.md has the bytes).
//
// Tokens are the rows of both products, queries of one kv head the 8 columns: S = K Qᵀ reads words of keys by ldmatrix as its
// operand A, O = Vᵀ P words of values by ldmatrix.trans. A word holds R codes, hence R operands: one LOP3 takes the two codes of a
// half2, as subnormal numbers that need no arithmetic. Scales never touch codes: those of keys by channel multiply Q (one product a
// group, channel and query), those of values by token multiply P; zeros of keys are a product of their own, of which every row is alike,
// and zeros of values a sum over P.
//
// A warp is alone from its first unit (half a tile of N_r tokens) to its last: it copies units into its own ring of shared memory
// (cp.async), and has maxima, sums and outputs of its own, so that no warp waits for another's softmax. What warps of a block
// found is brought together at the end, and what blocks (splits of the tokens) found by the block that
// ends last. The exact tail goes to the warps of the last split.
#pragma once
#include "cuda/attention/kv_shape.h"
#ifdef LPQ_SIMT
#include LPQ_SIMT
#else
#include "cuda/attention/kv_ptx.cuh"
#endif

namespace lpq::cuda {

// Codes number J of the two words of a register, as halves code 2^-kDown: a field that ends below bit 11 of a half is a number that
// counts units of 2^-24, subnormal or of the first normal binade, so that a mask is all it takes. Tensor cores multiply such
// numbers exactly; the power of two is taken back from sums.
template <int BITS, int J>
struct Field {
  static constexpr bool kShift = BITS * J + BITS > 11;
  static constexpr int kAt = kShift ? BITS * J - 8 : BITS * J, kDown = 24 - kAt;
  static constexpr uint32_t kMask = ((1u << BITS) - 1) << kAt;
  static constexpr float kBack = static_cast<float>(1 << kDown);
};
template <int BITS, int J>
__device__ __forceinline__ uint32_t codes_of(uint32_t word) {
  using F = Field<BITS, J>;
  return (F::kShift ? word >> 8 : word) & (F::kMask * 0x10001u);
}

template <int I>
struct Step {
  static constexpr int value = I;
};
template <int I, int N, class F>
__device__ __forceinline__ void each_step(F&& f) {
  if constexpr (I < N) {
    f(Step<I>{});
    each_step<I + 1, N>(f);
  }
}

template <class T>
struct KvUnit {
  // Shared memory of one stage, and where chunk `c` (16 bytes) of a row lies, so that eight rows meet no bank twice.
  uint32_t keys;
  __device__ uint32_t values() const { return keys + T::kKeyBytes; }
  __device__ uint32_t key_numbers() const { return values() + T::kValueBytes; }
  __device__ uint32_t value_numbers() const { return key_numbers() + T::kKeyNumbers; }
  __device__ uint32_t key_chunk(int row, int c) const { return keys + static_cast<uint32_t>(row * T::kKeyRow + ((c ^ (row & 7)) << 4)); }
  __device__ uint32_t value_chunk(int row, int c) const {
    constexpr int chunks = T::kValueRow / 16;
    const int turn = chunks >= 8 ? row & 7 : (row * chunks >> 3) & (chunks - 1);
    return values() + static_cast<uint32_t>(row * T::kValueRow + ((c ^ turn) << 4));
  }
};

// Copies unit `n` of the sequence to a stage; one group of copies.
template <class T>
__device__ __forceinline__ void kv_fetch(const KvDecodeArgs& a, const int* table, int head, int n, const KvUnit<T>& to) {
  const int lane = static_cast<int>(threadIdx.x & 31), half = 16 * (n & 1), token = (n >> 1) * T::kTile;
  const int page = table[token / a.page_tokens], in_page = token % a.page_tokens;
  const unsigned char* keys = a.keys + page * a.keys_page + static_cast<long long>(in_page / T::kCodes + half) * a.key_row + static_cast<long long>(head) * a.key_head;
  constexpr int key_chunks = T::kKeyRow / 16, key_rows = 32 / key_chunks;
  keys += static_cast<long long>(lane / key_chunks) * a.key_row + 16 * (lane % key_chunks);
#pragma unroll
  for (int i = 0; i < 16 / key_rows; ++i) copy16_async(to.key_chunk(lane / key_chunks + i * key_rows, lane % key_chunks), keys + i * (key_rows * a.key_row), 16);
  // Rows of values are tokens in the order of the steps: 16 of each 32.
  constexpr int value_chunks = T::kValueRow / 16, value_rows = 32 / value_chunks;
  const int row = lane / value_chunks;
  const unsigned char* values = a.values + page * a.values_page + static_cast<long long>(in_page + half + 32 * (row >> 4) + (row & 15)) * a.value_row +
                                static_cast<long long>(head) * a.value_head + 16 * (lane % value_chunks);
#pragma unroll
  for (int i = 0; i < T::kTokens / value_rows; ++i) {
    const int tokens = value_rows >= 16 ? 2 * i * value_rows : (i * value_rows >> 4) * 32 + (i * value_rows & 15);
    copy16_async(to.value_chunk(row + i * value_rows, lane % value_chunks), values + tokens * a.value_row, 16);
  }
  const unsigned char* numbers = a.key_numbers + page * a.key_numbers_page + static_cast<long long>(in_page / T::kKeyGroup) * a.key_number_row +
                                 static_cast<long long>(head) * a.key_number_head;
#pragma unroll
  for (int i = lane; i < T::kKeyNumbers / 16; i += 32)
    copy16_async(to.key_numbers() + 16 * i, numbers + static_cast<long long>(i / (T::kDims / 4)) * a.key_number_row + 16 * (i % (T::kDims / 4)), 16);
  // Of each step of 16 tokens scales and zeros, two chunks each; in shared memory [group of dims][scales, zeros][tokens].
  const unsigned char* lines = a.value_numbers + page * a.value_numbers_page + static_cast<long long>(head) * a.value_number_head;
#pragma unroll
  for (int i = lane; i < T::kValueNumbers / 16; i += 32) {
    const int piece = i & 1, step = (i >> 1) % T::kCodes, kind = (i >> 1) / T::kCodes & 1, group = (i >> 1) / T::kCodes / 2;
    const int t = in_page + 32 * step + half;
    copy16_async(to.value_numbers() + static_cast<uint32_t>(((group * 2 + kind) * T::kTokens + 16 * step + 8 * piece) * 2),
                 lines + static_cast<long long>(group) * a.value_number_group + t / T::kRun * T::kRun * 4 + kind * T::kRun * 2 + t % T::kRun * 2 + 16 * piece, 16);
  }
}

// What a warp has found: for its columns 2 (lane % 4) and the next. Sums are parts of columns until the end.
template <class T>
struct KvState {
  float most[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0}, zeros[T::kValueGroups][2] = {};
  float out[T::kDims / 16][4] = {};
};

// Raises the maxima to what this lane has seen, and takes down what was summed below the old ones.
template <class T>
__device__ __forceinline__ void kv_raise(float (&peak)[2], KvState<T>& state) {
#pragma unroll
  for (int c = 0; c < 2; ++c)
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) peak[c] = fmaxf(peak[c], __shfl_xor_sync(0xffffffffu, peak[c], mask));
  if (!any_lane(peak[0] > state.most[0] || peak[1] > state.most[1])) return;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const float shrink = power_of_two(state.most[c] - peak[c]);
    state.most[c] = peak[c], state.total[c] *= shrink;
#pragma unroll
    for (int v = 0; v < T::kValueGroups; ++v) state.zeros[v][c] *= shrink;
#pragma unroll
    for (int m = 0; m < T::kDims / 16; ++m) state.out[m][c] *= shrink, state.out[m][c + 2] *= shrink;
  }
}

template <class T>
__device__ __forceinline__ void kv_unit(const KvUnit<T>& unit, const uint32_t (&q)[T::kDims / 16][2], float scale, KvState<T>& state) {
  constexpr int R = T::kCodes, B = T::kBits;
  const int lane = static_cast<int>(threadIdx.x & 31), g = lane >> 2, t = lane & 3, matrix = lane >> 3, row = (lane & 7) + 8 * (matrix & 1);
  float score[R][4] = {}, zero[T::kGroups][4] = {};
#pragma unroll
  for (int kc = 0; kc < T::kDims / 16; ++kc) {
    uint32_t word[4], b[2];
    load_matrices(word, unit.key_chunk(row, 2 * kc + (matrix >> 1)));
    each_step<0, R>([&](auto step) {
      constexpr int J = decltype(step)::value;
      if constexpr (J % T::kGroupTiles == 0) {
        const uint32_t at = unit.key_numbers() + static_cast<uint32_t>(J / T::kGroupTiles * T::kDims * 4 + (8 * kc + t) * 8);
        const uint2 low = load_shared_pair(at), high = load_shared_pair(at + 32);
        const uint32_t same[4] = {low.y, low.y, high.y, high.y};
        multiply<false>(zero[J / T::kGroupTiles], same, q[kc][0], q[kc][1]);
        b[0] = half2_mul(q[kc][0], low.x), b[1] = half2_mul(q[kc][1], high.x);
      }
      const uint32_t codes[4] = {codes_of<B, J>(word[0]), codes_of<B, J>(word[1]), codes_of<B, J>(word[2]), codes_of<B, J>(word[3])};
      multiply<false>(score[J], codes, b[0], b[1]);
    });
  }
  float peak[2] = {state.most[0], state.most[1]};
  each_step<0, R>([&](auto step) {
    constexpr int J = decltype(step)::value;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      score[J][i] = fused(score[J][i], scale * Field<B, J>::kBack, zero[J / T::kGroupTiles][i & 1] * scale);
      peak[i & 1] = fmaxf(peak[i & 1], score[J][i]);
    }
  });
  kv_raise<T>(peak, state);
#pragma unroll
  for (int j = 0; j < R; ++j) {
    uint32_t weights[T::kValueGroups][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) score[j][i] = power_of_two(score[j][i] - state.most[i & 1]), state.total[i & 1] += score[j][i];
#pragma unroll
    for (int v = 0; v < T::kValueGroups; ++v)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const uint32_t at = unit.value_numbers() + static_cast<uint32_t>((2 * v * T::kTokens + 16 * j + 8 * k + g) * 2);
        const float s = load_shared_half(at), z = load_shared_half(at + 2 * T::kTokens);
        state.zeros[v][0] = fused(score[j][2 * k], z, state.zeros[v][0]);
        state.zeros[v][1] = fused(score[j][2 * k + 1], z, state.zeros[v][1]);
        weights[v][k] = turn_matrix(half2_of(score[j][2 * k] * s, score[j][2 * k + 1] * s));
      }
#pragma unroll
    for (int w = 0; w < (T::kWords + 15) / 16; ++w) {
      uint32_t word[4];
      load_matrices_turned(word, unit.value_chunk(16 * j + (lane & 7) + 8 * (matrix >> 1), 2 * w + (T::kNarrow ? 0 : matrix & 1)));
      if constexpr (T::kNarrow) {
        // Rows 8 to 15 of operand A are the next code of the same words.
        each_step<0, R / 2>([&](auto step) {
          constexpr int I = decltype(step)::value;
          const uint32_t codes[4] = {codes_of<B, 2 * I>(word[0]), codes_of<B, 2 * I + 1>(word[0]), codes_of<B, 2 * I>(word[2]), codes_of<B, 2 * I + 1>(word[2])};
          constexpr int v = 16 * I / T::kValueGroup;
          multiply<false>(state.out[I], codes, weights[v][0], weights[v][1]);
        });
      } else {
        each_step<0, R>([&](auto step) {
      constexpr int J = decltype(step)::value;
          const uint32_t codes[4] = {codes_of<B, J>(word[0]), codes_of<B, J>(word[1]), codes_of<B, J>(word[2]), codes_of<B, J>(word[3])};
          const int first = 16 * w / T::kChunkWords * T::kChunk + 16 * w % T::kChunkWords + J * T::kChunkWords;
          const int v = first / T::kValueGroup;
          multiply<false>(state.out[first / 16], codes, weights[v][0], weights[v][1]);
        });
      }
    }
  }
}

// Sixteen tokens of the exact tail from `first` on, those beyond its end left out; outputs in their own units.
template <class T>
__device__ __forceinline__ void kv_tail(const KvDecodeArgs& a, int sequence, int head, int first, const uint32_t (&q)[T::kDims / 16][2], KvState<T>& state) {
  const int lane = static_cast<int>(threadIdx.x & 31), g = lane >> 2, t = lane & 3, tokens = a.tails[sequence] - first, row = a.kv_heads * T::kDims;
  const long long base = (static_cast<long long>(sequence) * a.room + first) * row + static_cast<long long>(head) * T::kDims;
  const unsigned short *keys = a.tail_keys + base, *values = a.tail_values + base;
  float score[4] = {};
#pragma unroll
  for (int kc = 0; kc < T::kDims / 16; ++kc) {
    uint32_t k[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = g + 8 * (i & 1);
      k[i] = token < tokens ? *reinterpret_cast<const uint32_t*>(keys + token * row + 16 * kc + 8 * (i >> 1) + 2 * t) : 0;
    }
    multiply<false>(score, k, q[kc][0], q[kc][1]);
  }
  float peak[2] = {state.most[0], state.most[1]};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    score[i] = g + 8 * (i >> 1) < tokens ? score[i] * a.scale : -INFINITY;
    peak[i & 1] = fmaxf(peak[i & 1], score[i]);
  }
  kv_raise<T>(peak, state);
#pragma unroll
  for (int i = 0; i < 4; ++i) score[i] = power_of_two(score[i] - state.most[i & 1]), state.total[i & 1] += score[i];
  const uint32_t weights[2] = {turn_matrix(half2_of(score[0], score[1])), turn_matrix(half2_of(score[2], score[3]))};
#pragma unroll
  for (int m = 0; m < T::kDims / 16; ++m) {
    uint32_t v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = 2 * t + 8 * (i >> 1), d = 16 * m + g + 8 * (i & 1);
      v[i] = (token < tokens ? values[token * row + d] : 0u) | (token + 1 < tokens ? static_cast<uint32_t>(values[(token + 1) * row + d]) << 16 : 0u);
    }
    multiply<false>(state.out[m], v, weights[0], weights[1]);
  }
}

// Takes back the powers of two of Field: of rows 0 to 7 and 8 to 15 of every 16 dims.
template <class T>
__device__ __forceinline__ void kv_settle(KvState<T>& state) {
  each_step<0, T::kNarrow ? T::kCodes / 2 : T::kCodes>([&](auto step) {
    constexpr int J = decltype(step)::value;
    if constexpr (T::kNarrow) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state.out[J][i] *= i < 2 ? Field<T::kBits, 2 * J>::kBack : Field<T::kBits, 2 * J + 1>::kBack;
    } else {
#pragma unroll
      for (int w = 0; w < T::kWords / 16; ++w) {
        const int m = (16 * w / T::kChunkWords * T::kChunk + 16 * w % T::kChunkWords + J * T::kChunkWords) / 16;
#pragma unroll
        for (int i = 0; i < 4; ++i) state.out[m][i] *= Field<T::kBits, J>::kBack;
      }
    }
  });
}

// Blocks: split fastest, then tiles of 8 queries, kv heads, sequences.
template <class T>
__device__ __forceinline__ void kv_decode(const KvDecodeArgs& a) {
  const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5), g = lane >> 2, t = lane & 3;
  int index = static_cast<int>(blockIdx.x);
  const int split = index % a.splits;
  index /= a.splits;
  const int tile = index % a.query_tiles, head = index / a.query_tiles % a.kv_heads, sequence = index / a.query_tiles / a.kv_heads;
  const int group = a.heads / a.kv_heads, own = tile * kKvQueries + g;
  uint32_t q[T::kDims / 16][2];
  const unsigned short* query = a.q + (static_cast<long long>(sequence) * a.heads + head * group + own) * T::kDims;
#pragma unroll
  for (int kc = 0; kc < T::kDims / 16; ++kc)
#pragma unroll
    for (int k = 0; k < 2; ++k) q[kc][k] = own < group ? *reinterpret_cast<const uint32_t*>(query + 16 * kc + 8 * k + 2 * t) : 0;

  // Units of the sequence in runs, one a split, of which warps take every kWarps-th.
  const int units = 2 * (a.lengths[sequence] / T::kTile), run = (units + a.splits - 1) / a.splits;
  const int begin = split * run, end = begin + run < units ? begin + run : units;
  const int* table = a.table + static_cast<long long>(sequence) * a.table_pages;
  unsigned char* const shared = attention_shared();
  const uint32_t ring = shared_address(shared) + static_cast<uint32_t>(warp * T::kStages * T::kStage);
  const auto stage = [&](int i) { return KvUnit<T>{ring + static_cast<uint32_t>(i * T::kStage)}; };
  KvState<T> state;
  int next = begin + warp;
#pragma unroll
  for (int i = 0; i < T::kStages - 1; ++i) {
    if (next < end) kv_fetch<T>(a, table, head, next, stage(i));
    commit_copies();
    next += T::kWarps;
  }
  int slot = 0;
  for (int n = begin + warp; n < end; n += T::kWarps) {
    wait_copies<T::kStages - 2>();
    __syncwarp();  // all lanes' copies have come, and the slot before this one has been read
    if (next < end) kv_fetch<T>(a, table, head, next, stage(slot == 0 ? T::kStages - 1 : slot - 1));
    commit_copies();
    next += T::kWarps;
    kv_unit<T>(stage(slot), q, a.scale, state);
    slot = slot + 1 == T::kStages ? 0 : slot + 1;
  }
  wait_copies<0>();
  kv_settle<T>(state);
  if (split == a.splits - 1)  // the last warps first, which have fewer units
    for (int first = 16 * (T::kWarps - 1 - warp); first < a.tails[sequence]; first += 16 * T::kWarps) kv_tail<T>(a, sequence, head, first, q, state);

#pragma unroll
  for (int c = 0; c < 2; ++c)
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) {
      state.total[c] += __shfl_xor_sync(0xffffffffu, state.total[c], mask);
#pragma unroll
      for (int v = 0; v < T::kValueGroups; ++v) state.zeros[v][c] += __shfl_xor_sync(0xffffffffu, state.zeros[v][c], mask);
    }
  __syncthreads();  // the rings are free
  float* const records = reinterpret_cast<float*>(shared);
  float* const record = records + warp * kKvRecord<T::kDims>;
  if (g == 0)
#pragma unroll
    for (int c = 0; c < 2; ++c) record[2 * t + c] = state.most[c], record[kKvQueries + 2 * t + c] = state.total[c];
#pragma unroll
  for (int m = 0; m < T::kDims / 16; ++m)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int d = 16 * m + g + 8 * (i >> 1), column = 2 * t + (i & 1);
      record[2 * kKvQueries + column * T::kDims + d] = state.out[m][i] + state.zeros[16 * m / T::kValueGroup][i & 1];
    }
  __syncthreads();
  constexpr int size = kKvRecord<T::kDims>;
  const int tile_index = (sequence * a.kv_heads + head) * a.query_tiles + tile;
  float* const all = a.partial + static_cast<long long>(tile_index) * a.splits * size;
  const auto write = [&](int column, int d, float total, float sum) {
    if (tile * kKvQueries + column >= group) return;
    const float y = total > 0 ? quotient(sum, total) : 0.0f;
    const long long at = (static_cast<long long>(sequence) * a.heads + head * group + tile * kKvQueries + column) * T::kDims + d;
    if (a.wide) static_cast<float*>(a.y)[at] = y;
    else static_cast<unsigned short*>(a.y)[at] = half_bits(y);
  };
  for (int i = static_cast<int>(threadIdx.x); i < kKvQueries * T::kDims; i += 32 * T::kWarps) {
    const int column = i / T::kDims;
    float most = -INFINITY, total = 0, sum = 0;
#pragma unroll
    for (int w = 0; w < T::kWarps; ++w) most = fmaxf(most, records[w * size + column]);
#pragma unroll
    for (int w = 0; w < T::kWarps; ++w) {
      const float* from = records + w * size;
      const float share = from[column] == -INFINITY ? 0.0f : power_of_two(from[column] - most);
      total = fused(from[kKvQueries + column], share, total);
      sum = fused(from[2 * kKvQueries + i], share, sum);
    }
    if (a.splits == 1) {
      write(column, i % T::kDims, total, sum);
      continue;
    }
    float* const to = all + static_cast<long long>(split) * size;
    to[2 * kKvQueries + i] = sum;
    if (i % T::kDims == 0) to[column] = most, to[kKvQueries + column] = total;
  }
  if (a.splits == 1) return;
  // Whoever delivers last brings the splits together, in their order.
  unsigned* const last = reinterpret_cast<unsigned*>(records + T::kWarps * size);
  __syncthreads();
  if (threadIdx.x == 0) *last = count_up(a.counters + tile_index);
  __syncthreads();
  if (*last != static_cast<unsigned>(a.splits - 1)) return;
  if (threadIdx.x == 0) a.counters[tile_index] = 0;
  const int queries = group - tile * kKvQueries < kKvQueries ? group - tile * kKvQueries : kKvQueries;
  for (int i = static_cast<int>(threadIdx.x); i < queries * T::kDims; i += 32 * T::kWarps) {
    const int column = i / T::kDims;
    float most = -INFINITY, total = 0, sum = 0;
#pragma unroll 8
    for (int r = 0; r < a.splits; ++r) most = fmaxf(most, load_fresh(all + static_cast<long long>(r) * size + column));
#pragma unroll 8
    for (int r = 0; r < a.splits; ++r) {
      const float* from = all + static_cast<long long>(r) * size;
      const float own_most = load_fresh(from + column), share = own_most == -INFINITY ? 0.0f : power_of_two(own_most - most);
      total = fused(load_fresh(from + kKvQueries + column), share, total);
      sum = fused(load_fresh(from + 2 * kKvQueries + i), share, sum);
    }
    write(column, i % T::kDims, total, sum);
  }
}

#define LPQ_KV_DECODE(bits, dims, name, key_group, value_group)                                                                              \
  extern "C" __global__ void __launch_bounds__(32 * lpq::cuda::KvShape<bits, dims, key_group, value_group>::kWarps, 1)                       \
      lpq_kv_decode_##bits##_##dims##_##name(const __grid_constant__ lpq::cuda::KvDecodeArgs a) {                                            \
    lpq::cuda::kv_decode<lpq::cuda::KvShape<bits, dims, key_group, value_group>>(a);                                                         \
  }

}  // namespace lpq::cuda
