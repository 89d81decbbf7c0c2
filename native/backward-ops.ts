import type { NativeRuntime, Tensor } from './binding.js';
import { multiplied } from './multiplied.js';
import type { ActivationName, AttentionParams, RopeStyle } from './ops.js';

type Added = { accumulate?: boolean };

/**
 * Vector-Jacobian products (native/ops/backward.h), f32: `dy` is the gradient with respect to the y of the operation of the
 * same name in native/ops.ts, dx with respect to its x. accumulate: added to what is there.
 */
export const backwardOps = {
  /** dx = dy W. */
  linearInputGradient: (rt: NativeRuntime, dy: Tensor, weight: Tensor, dx: Tensor, p: Added = {}) =>
    rt.enqueue('linear_input_gradient', [dy, weight], [dx], multiplied(rt, p)),

  /** dW = dyᵀ x. */
  linearWeightGradient: (rt: NativeRuntime, x: Tensor, dy: Tensor, dw: Tensor, p: Added = {}) =>
    rt.enqueue('linear_weight_gradient', [x, dy], [dw], multiplied(rt, p)),

  rmsnormBackward: (
    rt: NativeRuntime,
    x: Tensor,
    dy: Tensor,
    weight: Tensor | undefined,
    dx: Tensor,
    p: { eps: number; offset?: number } & Added,
  ) => rt.enqueue('rmsnorm_backward', weight ? [x, dy, weight] : [x, dy], [dx], p),

  layernormBackward: (
    rt: NativeRuntime,
    x: Tensor,
    dy: Tensor,
    weight: Tensor | undefined,
    dx: Tensor,
    p: { eps: number; offset?: number; turns?: number } & Added,
  ) => rt.enqueue('layernorm_backward', weight ? [x, dy, weight] : [x, dy], [dx], p),

  /** In place: dy becomes dx. */
  ropeBackward: (
    rt: NativeRuntime,
    dy: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    p: { heads: number; headDim: number; rotary: number; style: RopeStyle },
  ) => rt.enqueue('rope_backward', [dy, cos, sin, positions], [dy], p),

  attentionBackward: (
    rt: NativeRuntime,
    t: Record<'q' | 'k' | 'v' | 'starts' | 'dy', Tensor> & { selected?: Tensor; sinks?: Tensor },
    out: { dq: Tensor; dk: Tensor; dv: Tensor },
    p: AttentionParams & { choices?: number; block?: number },
  ) =>
    rt.enqueue(
      'attention_backward',
      [t.q, t.k, t.v, t.starts, t.dy, ...[t.selected, t.sinks].filter((tensor) => tensor !== undefined)],
      [out.dq, out.dk, out.dv],
      multiplied(rt, { ...p, chosen: t.selected ? 1 : 0 }),
    ),

  activationBackward: (rt: NativeRuntime, x: Tensor, dy: Tensor, dx: Tensor, p: { act: ActivationName }) =>
    rt.enqueue('activation_backward', [x, dy], [dx], p),

  gatedActivationBackward: (
    rt: NativeRuntime,
    t: { gate: Tensor; up: Tensor; dy: Tensor },
    out: { dgate: Tensor; dup: Tensor },
    p: { act: ActivationName },
  ) => rt.enqueue('gated_activation_backward', [t.gate, t.up, t.dy], [out.dgate, out.dup], p),

  clampedSwigluBackward: (
    rt: NativeRuntime,
    t: { gate: Tensor; up: Tensor; dy: Tensor },
    out: { dgate: Tensor; dup: Tensor },
    p: { alpha: number; limit: number },
  ) => rt.enqueue('clamped_swiglu_backward', [t.gate, t.up, t.dy], [out.dgate, out.dup], p),

  limitedGateBackward: (
    rt: NativeRuntime,
    t: { gate: Tensor; up: Tensor; dy: Tensor },
    out: { dgate: Tensor; dup: Tensor },
    p: { limit: number },
  ) => rt.enqueue('limited_gate_backward', [t.gate, t.up, t.dy], [out.dgate, out.dup], p),

  xieluBackward: (
    rt: NativeRuntime,
    x: Tensor,
    of: Record<'positive' | 'negative' | 'beta' | 'eps', Tensor>,
    dy: Tensor,
    dx: Tensor,
  ) => rt.enqueue('xielu_backward', [x, of.positive, of.negative, of.beta, of.eps, dy], [dx]),

  /** Of whole sequences; dx has the columns of x. */
  shortConvBackward: (
    rt: NativeRuntime,
    t: { x: Tensor; weight: Tensor; bias?: Tensor | undefined; starts: Tensor; dy: Tensor },
    dx: Tensor,
    p: { act: 'none' | 'silu'; first?: number; times?: number; gate?: number },
  ) =>
    rt.enqueue('short_conv_backward', [t.x, t.weight, ...(t.bias ? [t.bias] : []), t.starts, t.dy], [dx], {
      ...p,
      biased: t.bias ? 1 : 0,
    }),

  /** Of whole sequences. */
  gatedDeltaBackward: (
    rt: NativeRuntime,
    t: Record<'q' | 'k' | 'v' | 'decay' | 'beta' | 'rate' | 'bias' | 'starts' | 'dy', Tensor>,
    out: Record<'dq' | 'dk' | 'dv' | 'ddecay' | 'dbeta', Tensor>,
    p: { heads: number; keyHeads: number; keyDim: number; valueDim: number; strength?: number },
  ) =>
    rt.enqueue(
      'gated_delta_backward',
      [t.q, t.k, t.v, t.decay, t.beta, t.rate, t.bias, t.starts, t.dy],
      [out.dq, out.dk, out.dv, out.ddecay, out.dbeta],
      p,
    ),

  /** Of whole sequences. */
  selectiveScanBackward: (
    rt: NativeRuntime,
    t: Record<'x' | 'b' | 'c' | 'step' | 'rate' | 'bias' | 'skip' | 'starts' | 'dy', Tensor>,
    out: Record<'dx' | 'db' | 'dc' | 'dstep', Tensor>,
    p: { heads: number; headDim: number; groups: number; size: number; least?: number; most?: number },
  ) =>
    rt.enqueue(
      'selective_scan_backward',
      [t.x, t.b, t.c, t.step, t.rate, t.bias, t.skip, t.starts, t.dy],
      [out.dx, out.db, out.dc, out.dstep],
      p,
    ),

  /** From the output y of softCap. */
  softCapBackward: (rt: NativeRuntime, y: Tensor, dy: Tensor, dx: Tensor, p: { scale?: number; cap?: number } = {}) =>
    rt.enqueue('soft_cap_backward', [y, dy], [dx], p),

  /** sums f64 [T] = KL(softmax(target) || softmax(logits)) of each row, dlogits = factor times its gradient. */
  divergence: (
    rt: NativeRuntime,
    logits: Tensor,
    target: Tensor,
    out: { dlogits: Tensor; sums: Tensor },
    p: { factor?: number } = {},
  ) => rt.enqueue('divergence', [logits, target], [out.dlogits, out.sums], p),

  /** dy = y - target; sums f64 [T]: of its squares, row by row. */
  outputError: (rt: NativeRuntime, y: Tensor, target: Tensor, dy: Tensor, sums: Tensor) =>
    rt.enqueue('output_error', [y, target], [dy, sums]),
} as const;
