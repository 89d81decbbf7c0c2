import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { outputStage } from './attention.js';
import { branchInput, branchTensors } from './branch.js';
import type { MlaPlan } from './plan-mla.js';
import type { BlockState, BlockWeights, Feed, Stage } from './program.js';
import type { RopeCache } from './rope-cache.js';
import { applyLinear, applyNorm, linearRef, linearTensors, normTensors } from './weights.js';

export function mlaTensors(plan: MlaPlan): [string, readonly number[]][] {
  const { query } = plan;
  return [
    ...branchTensors(plan),
    ...(query.kind === 'direct'
      ? linearTensors(query.linear)
      : [...linearTensors(query.a), ...normTensors(query.norm), ...linearTensors(query.b)]),
    ...linearTensors(plan.kvA),
    ...normTensors(plan.kvNorm),
    ...[plan.kvB, plan.o].flatMap(linearTensors),
  ];
}

/** What `mla.a` hands on: q or its compressed vector, f32; kv f32 [T, latent + rotary]. */
interface Latent {
  readonly q: Tensor;
  readonly kv: Tensor;
}

/**
 * Pre-norm latent attention as three stages: `mla.a` down to the compressed vectors, `mla.b` from those up to the attention
 * output, `o` back into the residual stream. Keys and values are computed in full for every head, as in training: the
 * linears are quantized for the activations that they see.
 */
export function mlaStages(plan: MlaPlan, ropes: RopeCache): Stage[] {
  const { query, heads, latent, plain, rotary, value } = plan;
  const first = query.kind === 'direct' ? query.linear : query.a;
  const headDim = plain + rotary;

  const a: Stage = {
    id: 'mla.a',
    feeds: [{ id: 'mla.a', linears: [linearRef(first), linearRef(plan.kvA)] }],
    async capture(rt, weights, state) {
      return new Map([['mla.a', branchInput(rt, weights, plan.norm, state)]]);
    },
    async advance(rt, weights, state) {
      const x = branchInput(rt, weights, plan.norm, state);
      const q = applyLinear(rt, weights, first, x);
      const kv = applyLinear(rt, weights, plan.kvA, x);
      x.dispose();
      return { ...state, aux: { q, kv } };
    },
  };

  /** The compressed vectors as kvB reads them, [T, latent]. */
  const keyInput = (rt: NativeRuntime, weights: BlockWeights, kv: Tensor): Tensor => {
    const compressed = rt.allocate('f32', [kv.shape[0] as number, latent]);
    ops.copyHeads(rt, kv, compressed, {
      heads: 1,
      width: latent,
      fromDim: latent + rotary,
      from: 0,
      toDim: latent,
      to: 0,
    });
    const normed = applyNorm(rt, weights, plan.kvNorm, compressed);
    compressed.dispose();
    return normed;
  };

  const rotate = (rt: NativeRuntime, x: Tensor, state: BlockState, count: number): void => {
    const { cos, sin, positions } = ropes.forBatch(rt, plan.rope, state.batch);
    const { style } = plan.rope;
    ops.rope(rt, x, cos, sin, positions, { heads: count, headDim: rotary, rotary, style });
  };

  /** Rotates the last dimensions of every head of q [T, heads * headDim], in place. */
  const rotateQuery = (rt: NativeRuntime, q: Tensor, state: BlockState): void => {
    const part = rt.allocate('f32', [state.batch.tokens, heads * rotary]);
    const [inQ, inPart] = [plain, 0];
    ops.copyHeads(rt, q, part, { heads, width: rotary, fromDim: headDim, from: inQ, toDim: rotary, to: inPart });
    rotate(rt, part, state, heads);
    ops.copyHeads(rt, part, q, { heads, width: rotary, fromDim: rotary, from: inPart, toDim: headDim, to: inQ });
    part.dispose();
  };

  /** Keys [T, heads * headDim] and values [T, heads * value] of all heads. */
  const keysAndValues = (rt: NativeRuntime, weights: BlockWeights, kv: Tensor, state: BlockState) => {
    const { tokens } = state.batch;
    const x = keyInput(rt, weights, kv);
    const both = applyLinear(rt, weights, plan.kvB, x);
    const k = rt.allocate('f32', [tokens, heads * headDim]);
    const v = rt.allocate('f32', [tokens, heads * value]);
    const turning = rt.allocate('f32', [tokens, rotary]);
    const fromDim = plain + value;
    ops.copyHeads(rt, both, k, { heads, width: plain, fromDim, from: 0, toDim: headDim, to: 0 });
    ops.copyHeads(rt, both, v, { heads, width: value, fromDim, from: plain, toDim: value, to: 0 });
    ops.copyHeads(rt, kv, turning, {
      heads: 1,
      width: rotary,
      fromDim: latent + rotary,
      from: latent,
      toDim: rotary,
      to: 0,
    });
    rotate(rt, turning, state, 1);
    const all = { heads, width: rotary, fromDim: rotary, from: 0, toDim: headDim, to: plain, shared: true };
    ops.copyHeads(rt, turning, k, all);
    for (const tensor of [x, both, turning]) tensor.dispose();
    return { k, v };
  };

  const keyFeed: Feed = { id: 'mla.kv_b', linears: [linearRef(plan.kvB)] };
  const b: Stage = {
    id: 'mla.b',
    // q, k, v and what kvB makes in f32; the three again in 16 bits, padded to 256 dimensions.
    temporaryBytes: heads * (4 * (2 * headDim + plain + 2 * value) + 6 * 256),
    feeds: query.kind === 'direct' ? [keyFeed] : [{ id: 'mla.q_b', linears: [linearRef(query.b)] }, keyFeed],
    async capture(rt, weights, state) {
      const { q, kv } = state.aux as unknown as Latent;
      const captured = new Map<string, Tensor>();
      if (query.kind === 'latent') captured.set('mla.q_b', applyNorm(rt, weights, query.norm, q));
      return captured.set('mla.kv_b', keyInput(rt, weights, kv));
    },
    async advance(rt, weights, state) {
      const { q: given, kv } = state.aux as unknown as Latent;
      // A tensor of its own: what a stage was handed may be needed again by another sweep.
      const q = rt.allocate('f32', [state.batch.tokens, heads * headDim]);
      if (query.kind === 'latent') {
        const x = applyNorm(rt, weights, query.norm, given);
        applyLinear(rt, weights, query.b, x, { y: q, accumulate: false });
        x.dispose();
      } else ops.cast(rt, given, q);
      rotateQuery(rt, q, state);
      const { k, v } = keysAndValues(rt, weights, kv, state);
      const attention = rt.allocate(rt.activationDtype, [state.batch.tokens, heads * value]);
      const params = { heads, kvHeads: heads, headDim, valueDim: value, scale: plan.scale };
      const columns = (of: Tensor) => ({ of, first: 0 });
      const tensors = { q: columns(q), k: columns(k), v: columns(v), y: attention };
      if (state.attend) state.attend(tensors, params, undefined);
      else ops.attention(rt, q, k, v, state.batch.starts, attention, params);
      for (const tensor of [given, q, kv, k, v]) tensor.dispose();
      return { ...state, aux: { attention } };
    },
  };
  return [a, b, outputStage(plan)];
}
