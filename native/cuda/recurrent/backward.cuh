// A way back through states of columns.cuh: gradients need the state in front of every token, newest first. States are
// kept in front of every span of tokens, those of a span made again and kept in front of every group of it, and those
// of a group made again for every token:
//   kept element (j, i) of a thread -> float (2 j + i) * kColumnThreads + thread
#pragma once
#include "cuda/recurrent/columns.cuh"

namespace lpq::cuda {

constexpr int kSpan = 64;

// Tokens of a group.
template <int R>
constexpr int kGroup = R <= 16 ? 8 : 4;

// Room for kept states: of every block column `span_count` and `group_count`; those of sequence s from
// starts[s] / kSpan + s on, and from s * (groups of a span) or, with `by_tokens`, from starts[s] / group + s on.
struct KeptStates {
  float *spans, *groups;
  int span_count, group_count, by_tokens;
};

template <int R>
__device__ __forceinline__ void keep(const StatePart<R>& state, float* to) {
#pragma unroll
  for (int j = 0; j < R; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) to[(2 * j + i) * kColumnThreads + static_cast<int>(threadIdx.x)] = state.s[j][i];
}
template <int R>
__device__ __forceinline__ void restore(StatePart<R>& state, const float* from) {
#pragma unroll
  for (int j = 0; j < R; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) state.s[j][i] = from[(2 * j + i) * kColumnThreads + static_cast<int>(threadIdx.x)];
}

// Sums of a row's elements over a warp's columns to `to` [8 R]: v[j] of row 8 j + lane % 8.
template <int R>
__device__ __forceinline__ void over_columns(const float (&v)[R], float* to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool high = lane & 16, odd = lane & 8;
  float half[R / 2];
#pragma unroll
  for (int m = 0; m < R / 2; ++m) {
    const float own = high ? v[m + R / 2] : v[m], given = high ? v[m] : v[m + R / 2];
    half[m] = own + __shfl_xor_sync(0xffffffffu, given, 16);
  }
  const int first = (high ? R / 2 : 0), row = lane % 8;
  if constexpr (R == 2) {
    const float sum = half[0] + __shfl_xor_sync(0xffffffffu, half[0], 8);
    if (!odd) to[8 * first + row] = sum;
  } else {
#pragma unroll
    for (int m = 0; m < R / 4; ++m) {
      const float own = odd ? half[m + R / 4] : half[m], given = odd ? half[m] : half[m + R / 4];
      to[8 * (first + (odd ? R / 4 : 0) + m) + row] = own + __shfl_xor_sync(0xffffffffu, given, 8);
    }
  }
}

// Of a number that lanes of one column share, over a warp's columns.
__device__ __forceinline__ float over_pairs(float v) {
  v += __shfl_xor_sync(0xffffffffu, v, 8);
  v += __shfl_xor_sync(0xffffffffu, v, 16);
  return v;
}

// Rule: fetch<FIRST>(begin) brings the tokens of a group that begins there, first(i, state) takes the state through
// token i of it, advance(i, state) does so again, and back(i, state, later) makes the gradients of token i, of the
// state in front of it and what later tokens leave.
template <int R, class Rule>
__device__ void walk_back(Rule& rule, const Run& run, int sequence, const KeptStates& kept) {
  constexpr int kEach = kGroup<R>, kFloats = 2 * R * kColumnThreads;
  float* const spans =
      kept.spans + (static_cast<index_t>(blockIdx.x) * kept.span_count + run.first / kSpan + sequence) * kFloats;
  float* const groups = kept.groups + (static_cast<index_t>(blockIdx.x) * kept.group_count +
                                       (kept.by_tokens ? run.first / kEach + sequence : sequence * (kSpan / kEach))) *
                                          kFloats;
  StatePart<R> state{}, later{};
  for (int begin = 0; begin < run.count; begin += kEach) {
    if (begin % kSpan == 0) keep(state, spans + static_cast<index_t>(begin / kSpan) * kFloats);
    rule.template fetch<true>(begin);
    for (int i = 0; i < kEach && begin + i < run.count; ++i) rule.first(i, state);
  }
  for (int span = (run.count - 1) / kSpan * kSpan; span >= 0; span -= kSpan) {
    const int end = min(run.count, span + kSpan), newest = span + (end - 1 - span) / kEach * kEach;
    restore(state, spans + static_cast<index_t>(span / kSpan) * kFloats);
    for (int begin = span; begin <= newest; begin += kEach) {
      keep(state, groups + static_cast<index_t>((begin - span) / kEach) * kFloats);
      if (begin == newest) break;
      rule.template fetch<false>(begin);
      for (int i = 0; i < kEach; ++i) rule.advance(i, state);
    }
    for (int begin = newest; begin >= span; begin -= kEach) {
      rule.template fetch<false>(begin);
      StatePart<R> base;
      restore(base, groups + static_cast<index_t>((begin - span) / kEach) * kFloats);
      for (int i = min(kEach, end - begin) - 1; i >= 0; --i) {
        state = base;
        for (int before = 0; before < i; ++before) rule.advance(before, state);
        rule.back(i, state, later);
      }
    }
  }
}

}  // namespace lpq::cuda
