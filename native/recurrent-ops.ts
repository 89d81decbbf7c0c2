import type { NativeRuntime, OpParams, Tensor } from './binding.js';
import type { CacheStep } from './cache-ops.js';

/** The sequences of a batch; with `state` f32 [slots, ...] the tokens are the newest of theirs, and the state is changed. */
export type Past = Pick<CacheStep, 'starts'> & {
  readonly kept?: Pick<CacheStep, 'slots' | 'totals'> & { state: Tensor };
};

function enqueue(rt: NativeRuntime, op: string, inputs: readonly Tensor[], y: Tensor, past: Past, p: OpParams): void {
  const { starts, kept } = past;
  const all = [...inputs, starts, ...(kept ? [kept.slots, kept.totals, kept.state] : [])];
  rt.enqueue(op, all, kept ? [y, kept.state] : [y], p);
}

/** Layers with a state of fixed size, part of the operation table (ops.ts) (native/ops/recurrent.h). */
export const recurrentOps = {
  /** A causal convolution of each channel over a few tokens. */
  shortConv: (
    rt: NativeRuntime,
    x: Tensor,
    { weight, bias }: { weight: Tensor; bias?: Tensor | undefined },
    y: Tensor,
    past: Past,
    p: { act: 'none' | 'silu'; first?: number; times?: number; gate?: number },
  ) => enqueue(rt, 'short_conv', bias ? [x, weight, bias] : [x, weight], y, past, { ...p, biased: bias ? 1 : 0 }),

  /** The gated delta rule; `decay` one number a head, or one a channel of the keys. */
  gatedDelta: (
    rt: NativeRuntime,
    t: { q: Tensor; k: Tensor; v: Tensor; decay: Tensor; beta: Tensor; rate: Tensor; bias: Tensor },
    y: Tensor,
    past: Past,
    p: { heads: number; keyHeads: number; keyDim: number; valueDim: number; strength?: number },
  ) => enqueue(rt, 'gated_delta', [t.q, t.k, t.v, t.decay, t.beta, t.rate, t.bias], y, past, p),

  /** A selective state space: step, rate, bias and skip one a head (Mamba-2), or one a channel (Mamba). */
  selectiveScan: (
    rt: NativeRuntime,
    t: { x: Tensor; b: Tensor; c: Tensor; step: Tensor; rate: Tensor; bias: Tensor; skip: Tensor },
    y: Tensor,
    past: Past,
    p: { heads: number; headDim: number; groups: number; size: number; least?: number; most?: number },
  ) => enqueue(rt, 'selective_scan', [t.x, t.b, t.c, t.step, t.rate, t.bias, t.skip], y, past, p),
} as const;
