import type { NativeRuntime, Tensor } from './binding.js';

/** Several residual streams and routing by roots, part of the operation table (ops.ts) (native/ops/hyper.h). */
export const hyperOps = {
  /** How streams become one (pre), take over what a branch makes (post), and mix; without the two last outputs only pre. */
  hyperWeights: (
    rt: NativeRuntime,
    t: { w: Tensor; base: Tensor; scale: Tensor },
    y: { pre: Tensor; post?: Tensor; mix?: Tensor },
    p: { streams: number; iterations?: number; eps: number },
  ) => rt.enqueue('hyper_weights', [t.w, t.base, t.scale], [y.pre, ...(y.post && y.mix ? [y.post, y.mix] : [])], p),

  hyperCollapse: (rt: NativeRuntime, x: Tensor, pre: Tensor, y: Tensor) => rt.enqueue('hyper_collapse', [x, pre], [y]),

  hyperExpand: (rt: NativeRuntime, x: Tensor, t: { made: Tensor; post: Tensor; mix: Tensor }, y: Tensor) =>
    rt.enqueue('hyper_expand', [x, t.made, t.post, t.mix], [y]),

  /** y = silu(min(gate, limit)) * clamp(up, -limit, limit). */
  limitedGate: (rt: NativeRuntime, gate: Tensor, up: Tensor, y: Tensor, p: { limit: number }) =>
    rt.enqueue('limited_gate', [gate, up], [y], p),

  /** Experts by sqrt(softplus(logit)), or those that `table` names for the tokens' ids. */
  routeRoot: (
    rt: NativeRuntime,
    t: { logits: Tensor; bias?: Tensor | undefined; ids?: Tensor | undefined; table?: Tensor | undefined },
    y: { indices: Tensor; weights: Tensor },
    p: { k: number; scale: number },
  ) =>
    rt.enqueue(
      'route_root',
      [t.logits, ...(t.bias ? [t.bias] : []), ...(t.ids && t.table ? [t.ids, t.table] : [])],
      [y.indices, y.weights],
      { ...p, biased: t.bias ? 1 : 0, hashed: t.table ? 1 : 0 },
    ),
} as const;
