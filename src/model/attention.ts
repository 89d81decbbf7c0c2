import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { addBranch, branchInput, branchTensors } from './branch.js';
import { cachedAttention, requireCpu } from './cached-attention.js';
import type { AttentionPlan, BranchPlan, LinearPlan, NormPlan } from './plan.js';
import type { BlockState, BlockWeights, Stage } from './program.js';
import { project, projectionRefs, projectionTensors } from './projections.js';
import type { RopeCache } from './rope-cache.js';
import { applyNorm, linearRef, linearTensors, normTensors, weightOf } from './weights.js';

export function attentionTensors(plan: AttentionPlan): [string, readonly number[]][] {
  return [
    ...branchTensors(plan),
    ...projectionTensors(plan),
    ...linearTensors(plan.o),
    ...normTensors(plan.qNorm),
    ...normTensors(plan.kNorm),
    ...(plan.sinks === undefined ? [] : [[plan.sinks, [plan.heads]] as [string, readonly number[]]]),
  ];
}

/** Where the input of an MLP that runs beside attention waits for its stage. */
export const PARALLEL_INPUT = 'mlp_input';

/** What an MLP that runs beside attention needs made before attention changes the residual stream. */
export interface Beside {
  readonly norm: NormPlan | undefined;
}

/**
 * Self-attention as two stages: `qkv` up to the attention output, `o` back into the residual stream. `beside`: an MLP reads
 * the same h; its input is made here.
 */
export function attentionStages(plan: AttentionPlan, ropes: RopeCache, beside?: Beside): Stage[] {
  const { heads, kvHeads, headDim } = plan;

  /** q or k f32, in place: normalised where the model does so, rotated. */
  const place = (
    rt: NativeRuntime,
    weights: BlockWeights,
    state: BlockState,
    y: Tensor,
    norm: NormPlan | undefined,
    count: number,
  ): void => {
    if (norm) {
      const rows = y.view([(state.batch.tokens * count * headDim) / norm.size, norm.size]);
      applyNorm(rt, weights, norm, rows, true);
      rows.dispose();
    }
    if (!plan.rope) return;
    const { rotary, style } = plan.rope;
    const { cos, sin, positions } = ropes.forBatch(rt, plan.rope, state.batch);
    ops.rope(rt, y, cos, sin, positions, { heads: count, headDim, rotary, style });
  };

  const qkv: Stage = {
    id: 'qkv',
    feeds: [{ id: 'qkv', linears: projectionRefs(plan) }],
    async capture(rt, weights, state) {
      return new Map([['qkv', branchInput(rt, weights, plan.norm, state.h)]]);
    },
    async advance(rt, weights, state) {
      const x = branchInput(rt, weights, plan.norm, state.h);
      const { q, k, v } = project(rt, weights, plan, x);
      place(rt, weights, state, q, plan.qNorm, heads);
      place(rt, weights, state, k, plan.kNorm, kvHeads);
      const { kv } = weights;
      if (kv && !('form' in kv) && !state.attend) {
        requireCpu(rt);
        for (const cached of [k, v]) ops.simulateKv(rt, cached, state.batch.starts, cached, kv);
      }
      const attention = rt.allocate(rt.activationDtype, [state.batch.tokens, heads * headDim]);
      const sinks = plan.sinks === undefined ? undefined : weightOf(weights, plan.sinks);
      const { scale, window, softCap } = plan;
      const params = { heads, kvHeads, headDim, scale, window, ...(softCap > 0 && { softCap }) };
      if (state.attend) state.attend({ q, k, v, y: attention }, params, sinks);
      else if (kv && 'form' in kv) cachedAttention(rt, kv, { q, k, v, y: attention }, state.batch, params, sinks);
      else ops.attention(rt, q, k, v, state.batch.starts, attention, params, sinks);
      const aux: Record<string, Tensor> = { attention };
      if (beside) {
        const same = beside.norm !== undefined && beside.norm.weight === plan.norm?.weight;
        aux[PARALLEL_INPUT] = same ? x.view(x.shape) : branchInput(rt, weights, beside.norm, state.h);
      }
      for (const tensor of [x, q, k, v]) tensor.dispose();
      return { ...state, aux };
    },
  };

  return [qkv, outputStage(plan)];
}

/** From the attention output (`attention` [T, K] of the state) back into the residual stream. */
export function outputStage(plan: BranchPlan & { readonly o: LinearPlan }): Stage {
  return {
    id: 'o',
    feeds: [{ id: 'o', linears: [linearRef(plan.o)] }],
    async capture(_rt, _weights, state) {
      const { attention } = state.aux as { attention: Tensor };
      return new Map([['o', attention.view(attention.shape)]]);
    },
    async advance(rt, weights, state) {
      const { attention, ...aux } = state.aux as { attention: Tensor };
      addBranch(rt, weights, plan, plan.o, attention, state.h);
      attention.dispose();
      return { ...state, aux };
    },
  };
}
