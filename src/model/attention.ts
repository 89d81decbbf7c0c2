import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { AttentionPlan, LinearPlan, NormPlan } from './plan.js';
import type { BlockState, BlockWeights, Stage } from './program.js';
import type { RopeCache } from './rope-cache.js';
import { applyLinear, applyNorm, linearRef, linearTensors, normTensors, weightOf } from './weights.js';

export function attentionTensors(plan: AttentionPlan): [string, readonly number[]][] {
  return [
    ...normTensors(plan.norm),
    ...[plan.q, plan.k, plan.v, plan.o].flatMap(linearTensors),
    ...normTensors(plan.qNorm),
    ...normTensors(plan.kNorm),
    ...(plan.sinks === undefined ? [] : [[plan.sinks, [plan.heads]] as [string, readonly number[]]]),
  ];
}

/** Pre-norm self-attention as two stages: `qkv` up to the attention output, `o` back into the residual stream. */
export function attentionStages(plan: AttentionPlan, ropes: RopeCache): Stage[] {
  const { heads, kvHeads, headDim } = plan;

  const rotate = (rt: NativeRuntime, x: Tensor, state: BlockState, count: number): void => {
    const { cos, sin } = ropes.upTo(rt, plan.rope, state.batch.longest);
    const { rotary, style } = plan.rope;
    ops.rope(rt, x, cos, sin, state.batch.positions, { heads: count, headDim, rotary, style });
  };

  /** q or k, f32: projected, normalised head by head where the model does so, rotated. */
  const project = (
    rt: NativeRuntime,
    weights: BlockWeights,
    state: BlockState,
    x: Tensor,
    linear: LinearPlan,
    norm: NormPlan | undefined,
    count: number,
  ): Tensor => {
    const y = applyLinear(rt, weights, linear, x);
    if (norm) {
      const perHead = y.view([state.batch.tokens * count, headDim]);
      applyNorm(rt, weights, norm, perHead, true);
      perHead.dispose();
    }
    rotate(rt, y, state, count);
    return y;
  };

  const qkv: Stage = {
    id: 'qkv',
    feeds: [{ id: 'qkv', linears: [plan.q, plan.k, plan.v].map((linear) => linearRef(linear)) }],
    async capture(rt, weights, state) {
      return new Map([['qkv', applyNorm(rt, weights, plan.norm, state.h)]]);
    },
    async advance(rt, weights, state) {
      const x = applyNorm(rt, weights, plan.norm, state.h);
      const q = project(rt, weights, state, x, plan.q, plan.qNorm, heads);
      const k = project(rt, weights, state, x, plan.k, plan.kNorm, kvHeads);
      const v = applyLinear(rt, weights, plan.v, x);
      const attention = rt.allocate(rt.activationDtype, [state.batch.tokens, heads * headDim]);
      const sinks = plan.sinks === undefined ? undefined : weightOf(weights, plan.sinks);
      const { scale, window } = plan;
      ops.attention(rt, q, k, v, state.batch.starts, attention, { heads, kvHeads, headDim, scale, window }, sinks);
      for (const tensor of [x, q, k, v]) tensor.dispose();
      return { ...state, aux: { attention } };
    },
  };

  return [qkv, outputStage(plan.o)];
}

/** From the attention output (`attention` [T, K] of the state) back into the residual stream. */
export function outputStage(linear: LinearPlan): Stage {
  return {
    id: 'o',
    feeds: [{ id: 'o', linears: [linearRef(linear)] }],
    async capture(_rt, _weights, state) {
      const { attention } = state.aux as { attention: Tensor };
      return new Map([['o', attention.view(attention.shape)]]);
    },
    async advance(rt, weights, state) {
      const { attention, ...aux } = state.aux as { attention: Tensor };
      applyLinear(rt, weights, linear, attention, { y: state.h, accumulate: true });
      attention.dispose();
      return { ...state, aux };
    },
  };
}
