// The gradient of the gated delta rule (ops/backward_recurrent.h, GatedDeltaBackward), of a block's columns. With
// S' = diag(a) S, e = v - kᵀS', S+ = S' + beta k e, y = qᵀS+ and D the gradient of S+ (q dy of this token beside what
// later ones leave): u = kᵀD, dq = S+ dy, dbeta = u e, dv = beta u, dk = D beta e - S' dv, D' = D - k dv, da = rows of
// D' times those of S, and diag(a) D' goes on to the token before. A block has its share of the sums over columns.
#pragma once
#include "cuda/recurrent/backward.cuh"

namespace lpq::cuda {

// errors: e of every token, [T, heads * valueDim]; of_q, of_k and, with a decay a channel, of_decay
// [blocks, T, keyDim]; of_beta and else of_decay [blocks, T]. Heads from first_head on.
struct DeltaGradient {
  const float *q, *k, *factor, *weight, *v, *dy;
  float *errors, *dv, *of_q, *of_k, *of_decay, *of_beta;
  int tokens, first_head, heads, key_heads, key_dim, value_dim, wide;
};

// values: v at first, then e.
template <int R, bool CHANNELS>
struct DeltaRoom {
  static constexpr int kSums = CHANNELS ? 3 : 2, kEach = kGroup<R>;
  float keys[kEach][8 * R], queries[kEach][8 * R], values[kEach][kColumns], slopes[kEach][kColumns];
  float decays[kEach][CHANNELS ? 8 * R : 4], weights[kEach];
  float sums[2][kSums][4][8 * R], singles[2][2][4];
};

template <int R, bool CHANNELS>
struct DeltaRule {
  const DeltaGradient& a;
  const Run run;
  DeltaRoom<R, CHANNELS>& room;
  const Column at;
  int head, key_head, part, there, begin = 0, turn = 0;

  __device__ DeltaRule(const DeltaGradient& of, const Run& of_run, DeltaRoom<R, CHANNELS>& in)
      : a(of), run(of_run), room(in) {
    const int parts = (a.value_dim + kColumns - 1) / kColumns, block = static_cast<int>(blockIdx.x);
    head = a.first_head + block / parts, part = block % parts * kColumns;
    there = min(kColumns, a.value_dim - part), key_head = head / (a.heads / a.key_heads);
  }
  __device__ index_t token(int i) const { return run.first + begin + i; }
  __device__ index_t place(int i) const { return (token(i) * a.heads + head) * a.value_dim + part; }
  __device__ float decay(int i, int j) const { return room.decays[i][CHANNELS ? 8 * j + at.row : 0]; }

  template <bool FIRST>
  __device__ void fetch(int from) {
    begin = from;
    __syncthreads();
    for (int i = 0; i < kGroup<R> && begin + i < run.count; ++i) {
      const index_t t = token(i), key = (t * a.key_heads + key_head) * a.key_dim;
      fetch_floats(room.keys[i], a.k + key, 8 * R, a.key_dim, a.wide);
      fetch_floats(room.values[i], (FIRST ? a.v : a.errors) + place(i), kColumns, there, a.wide);
      if (!FIRST) {
        fetch_floats(room.queries[i], a.q + key, 8 * R, a.key_dim, a.wide);
        fetch_floats(room.slopes[i], a.dy + place(i), kColumns, there, a.wide);
      }
      if (CHANNELS) fetch_floats(room.decays[i], a.factor + (t * a.heads + head) * a.key_dim, 8 * R, a.key_dim, a.wide);
      else if (threadIdx.x == 1) cp_async_4(shared_address(room.decays[i]), a.factor + t * a.heads + head, 4);
      if (threadIdx.x == 0) cp_async_4(shared_address(room.weights + i), a.weight + t * a.heads + head, 4);
    }
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
  }

  __device__ void add(int i, StatePart<R>& state, const float (&e)[2]) const {
    const float *k = room.keys[i] + at.row, by[2] = {room.weights[i] * e[0], room.weights[i] * e[1]};
#pragma unroll
    for (int j = 0; j < R; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) state.s[j][c] = __fmaf_rn(k[8 * j], by[c], decay(i, j) * state.s[j][c]);
  }
  __device__ void advance(int i, StatePart<R>& state) const {
    const float e[2] = {room.values[i][at.first], room.values[i][at.first + 1]};
    add(i, state, e);
  }
  __device__ void first(int i, StatePart<R>& state) const {
    const float* k = room.keys[i] + at.row;
    float e[2] = {};
#pragma unroll
    for (int j = 0; j < R; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) e[c] = __fmaf_rn(k[8 * j], decay(i, j) * state.s[j][c], e[c]);
#pragma unroll
    for (int c = 0; c < 2; ++c) e[c] = room.values[i][at.first + c] - over_rows(e[c]);
    if (at.row < 2 && at.first + at.row < there) a.errors[place(i) + at.first + at.row] = at.row == 0 ? e[0] : e[1];
    add(i, state, e);
  }

  __device__ void back(int i, const StatePart<R>& before, StatePart<R>& later) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const float *k = room.keys[i] + at.row, *q = room.queries[i] + at.row, weight = room.weights[i];
    float e[2], by[2], dy[2], u[2] = {}, dv[2], of_q[R], of_k[R], of_decay[R], whole = 0;
#pragma unroll
    for (int c = 0; c < 2; ++c)
      e[c] = room.values[i][at.first + c], by[c] = weight * e[c], dy[c] = room.slopes[i][at.first + c];
#pragma unroll
    for (int j = 0; j < R; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        later.s[j][c] = __fmaf_rn(q[8 * j], dy[c], later.s[j][c]);
        u[c] = __fmaf_rn(k[8 * j], later.s[j][c], u[c]);
      }
      of_k[j] = __fmaf_rn(later.s[j][1], by[1], later.s[j][0] * by[0]);
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) u[c] = over_rows(u[c]), dv[c] = weight * u[c];
#pragma unroll
    for (int j = 0; j < R; ++j) {
      const float factor = decay(i, j);
      of_q[j] = of_decay[j] = 0;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float forgotten = factor * before.s[j][c];
        of_q[j] = __fmaf_rn(__fmaf_rn(k[8 * j], by[c], forgotten), dy[c], of_q[j]);
        of_k[j] = __fmaf_rn(-forgotten, dv[c], of_k[j]);
        const float left = __fmaf_rn(-k[8 * j], dv[c], later.s[j][c]);
        of_decay[j] = __fmaf_rn(left, before.s[j][c], of_decay[j]);
        later.s[j][c] = factor * left;
      }
      whole += of_decay[j];
    }
    if (at.row < 2 && at.first + at.row < there) a.dv[place(i) + at.first + at.row] = at.row == 0 ? dv[0] : dv[1];

    over_columns<R>(of_q, room.sums[turn][0][warp]);
    over_columns<R>(of_k, room.sums[turn][1][warp]);
    if constexpr (CHANNELS) over_columns<R>(of_decay, room.sums[turn][2][warp]);
    else whole = warp_sum(whole);
    const float strength = over_pairs(__fmaf_rn(u[1], e[1], u[0] * e[0]));
    if (threadIdx.x % 32 == 0) room.singles[turn][0][warp] = strength, room.singles[turn][1][warp] = whole;
    __syncthreads();
    const index_t row = static_cast<index_t>(blockIdx.x) * a.tokens + token(i);
    const auto sum = [](const float (&of)[4]) { return (of[0] + of[1]) + (of[2] + of[3]); };
    for (int r = static_cast<int>(threadIdx.x); r < a.key_dim; r += kColumnThreads)
#pragma unroll
      for (int s = 0; s < DeltaRoom<R, CHANNELS>::kSums; ++s) {
        const auto& of = room.sums[turn][s];
        (s == 0   ? a.of_q
         : s == 1 ? a.of_k
                  : a.of_decay)[row * a.key_dim + r] = (of[0][r] + of[1][r]) + (of[2][r] + of[3][r]);
      }
    if (threadIdx.x == 0) a.of_beta[row] = sum(room.singles[turn][0]);
    if (!CHANNELS && threadIdx.x == 32) a.of_decay[row] = sum(room.singles[turn][1]);
    turn ^= 1;
  }
};

// A block's part of a sequence: columns blockIdx.x of those of all heads of the call, kColumns each.
template <int R, bool CHANNELS>
__device__ void delta_backward(const DeltaGradient& a, const Past& past, const KeptStates& kept, int sequence,
                               DeltaRoom<R, CHANNELS>& room) {
  const Run run = run_of(past, sequence);
  if (run.count == 0) return;
  DeltaRule<R, CHANNELS> rule(a, run, room);
  walk_back<R>(rule, run, sequence, kept);
}

}  // namespace lpq::cuda
