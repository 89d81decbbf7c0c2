// The gradient of selective state spaces (ops/backward_recurrent.h, SelectiveScanBackward), of a block's columns. With
// S+ = a S + d B x, y = C S+ + skip x and D the gradient of S+ (C dy of this token beside what later ones leave):
// dC = dy S+, dB = d x D, dx = d B D + skip dy, the step's = B x D + rate a S D, and a D goes on to the token before. A
// block has its share of the sums over columns.
#pragma once
#include "cuda/recurrent/backward.cuh"

namespace lpq::cuda {

// of_b and of_c [blocks, T, size]; of_step: of a step a head [blocks, T], else of the tensor's shape. Heads from
// first_head on.
struct ScanGradient {
  const float *x, *b, *c, *step, *dy;
  const void *rate, *skip;
  float *dx, *of_b, *of_c, *of_step;
  int tokens, first_head, heads, head_dim, groups, size, rate_type, skip_type, wide;
};

template <int R, bool CHANNELS>
struct ScanRoom {
  static constexpr int kEach = kGroup<R>;
  float ins[kEach][8 * R], outs[kEach][8 * R], xs[kEach][kColumns], slopes[kEach][kColumns];
  float steps[kEach][CHANNELS ? kColumns : 4];
  float sums[2][2][4][8 * R], singles[2][4];
};

template <int R, bool CHANNELS>
struct ScanRule {
  const ScanGradient& a;
  const Run run;
  ScanRoom<R, CHANNELS>& room;
  const Column at;
  float rate[CHANNELS ? R : 1][2] = {}, skip[2] = {};
  int head, group, part, there, begin = 0, turn = 0;

  __device__ ScanRule(const ScanGradient& of, const Run& of_run, ScanRoom<R, CHANNELS>& in)
      : a(of), run(of_run), room(in) {
    const int parts = (a.head_dim + kColumns - 1) / kColumns, block = static_cast<int>(blockIdx.x);
    head = a.first_head + block / parts, part = block % parts * kColumns;
    there = min(kColumns, a.head_dim - part), group = head / (a.heads / a.groups);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const index_t channel = static_cast<index_t>(head) * a.head_dim + part + at.first + c;
      if (at.first + c >= there) continue;
      skip[c] = load_any(a.skip, a.skip_type, CHANNELS ? channel : head);
      if (!CHANNELS) rate[0][c] = -expf(load_any(a.rate, a.rate_type, head));
      else
#pragma unroll
        for (int j = 0; j < R; ++j)
          if (8 * j + at.row < a.size)
            rate[j][c] = -expf(load_any(a.rate, a.rate_type, channel * a.size + 8 * j + at.row));
    }
  }
  __device__ index_t token(int i) const { return run.first + begin + i; }
  __device__ index_t place(int i) const { return (token(i) * a.heads + head) * a.head_dim + part; }
  __device__ float step(int i, int c) const { return room.steps[i][CHANNELS ? at.first + c : 0]; }

  template <bool FIRST>
  __device__ void fetch(int from) {
    begin = from;
    __syncthreads();
    for (int i = 0; i < kGroup<R> && begin + i < run.count; ++i) {
      const index_t t = token(i), of_group = (t * a.groups + group) * a.size;
      fetch_floats(room.ins[i], a.b + of_group, 8 * R, a.size, a.wide);
      fetch_floats(room.xs[i], a.x + place(i), kColumns, there, a.wide);
      if (!FIRST) {
        fetch_floats(room.outs[i], a.c + of_group, 8 * R, a.size, a.wide);
        fetch_floats(room.slopes[i], a.dy + place(i), kColumns, there, a.wide);
      }
      if (CHANNELS) fetch_floats(room.steps[i], a.step + place(i), kColumns, there, a.wide);
      else if (threadIdx.x == 0) cp_async_4(shared_address(room.steps[i]), a.step + t * a.heads + head, 4);
    }
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
  }

  __device__ void advance(int i, StatePart<R>& state) const {
    const float* b = room.ins[i] + at.row;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float d = step(i, c), in = d * room.xs[i][at.first + c], decay = CHANNELS ? 0.0f : expf(rate[0][c] * d);
#pragma unroll
      for (int j = 0; j < R; ++j)
        state.s[j][c] = __fmaf_rn(b[8 * j], in, (CHANNELS ? expf(rate[j][c] * d) : decay) * state.s[j][c]);
    }
  }
  __device__ void first(int i, StatePart<R>& state) const { advance(i, state); }

  __device__ void back(int i, const StatePart<R>& before, StatePart<R>& later) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const float *b = room.ins[i] + at.row, *out = room.outs[i] + at.row;
    float of_b[R] = {}, of_c[R] = {}, made[2], dx[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float d = step(i, c), x = room.xs[i][at.first + c], dy = room.slopes[i][at.first + c], in = d * x,
                  decay = CHANNELS ? 0.0f : expf(rate[0][c] * d);
      float along_b = 0, of_step = 0;
#pragma unroll
      for (int j = 0; j < R; ++j) {
        const float by = CHANNELS ? rate[j][c] : rate[0][c], factor = CHANNELS ? expf(by * d) : decay,
                    kept = factor * before.s[j][c], slope = __fmaf_rn(out[8 * j], dy, later.s[j][c]);
        of_c[j] = __fmaf_rn(dy, __fmaf_rn(b[8 * j], in, kept), of_c[j]);
        of_b[j] = __fmaf_rn(slope, in, of_b[j]);
        along_b = __fmaf_rn(slope, b[8 * j], along_b);
        of_step = __fmaf_rn(slope * by, kept, of_step);
        later.s[j][c] = factor * slope;
      }
      along_b = over_rows(along_b);
      made[c] = __fmaf_rn(along_b, x, over_rows(of_step));
      dx[c] = __fmaf_rn(d, along_b, skip[c] * dy);
    }
    if (at.row < 2 && at.first + at.row < there) {
      a.dx[place(i) + at.first + at.row] = at.row == 0 ? dx[0] : dx[1];
      if (CHANNELS) a.of_step[place(i) + at.first + at.row] = at.row == 0 ? made[0] : made[1];
    }
    over_columns<R>(of_b, room.sums[turn][0][warp]);
    over_columns<R>(of_c, room.sums[turn][1][warp]);
    const float whole = over_pairs(made[0] + made[1]);
    if (threadIdx.x % 32 == 0) room.singles[turn][warp] = whole;
    __syncthreads();
    const index_t row = static_cast<index_t>(blockIdx.x) * a.tokens + token(i);
    for (int r = static_cast<int>(threadIdx.x); r < a.size; r += kColumnThreads)
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const auto& of = room.sums[turn][s];
        (s == 0 ? a.of_b : a.of_c)[row * a.size + r] = (of[0][r] + of[1][r]) + (of[2][r] + of[3][r]);
      }
    if (!CHANNELS && threadIdx.x == 0) {
      const auto& of = room.singles[turn];
      a.of_step[row] = (of[0] + of[1]) + (of[2] + of[3]);
    }
    turn ^= 1;
  }
};

// A block's part of a sequence: columns blockIdx.x of those of all heads of the call, kColumns each.
template <int R, bool CHANNELS>
__device__ void scan_backward(const ScanGradient& a, const Past& past, const KeptStates& kept, int sequence,
                              ScanRoom<R, CHANNELS>& room) {
  const Run run = run_of(past, sequence);
  if (run.count == 0) return;
  ScanRule<R, CHANNELS> rule(a, run, room);
  walk_back<R>(rule, run, sequence, kept);
}

}  // namespace lpq::cuda
