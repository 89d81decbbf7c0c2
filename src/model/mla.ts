import { latentStored } from '../../formats/kv/latent.js';
import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { attendLatents } from './absorbed.js';
import { outputStage } from './attention.js';
import { branchInput, branchTensors } from './branch.js';
import {
  attendSelected,
  handOn,
  type IndexInputs,
  indexerTensors,
  indexInputs,
  type Selection,
  select,
} from './indexer.js';
import { throughF16, throughLatents } from './latent-cache.js';
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
    ...indexerTensors(plan.indexer),
  ];
}

/** What `mla.a` hands on: q or its compressed vector, f32; kv f32 [T, latent + rotary]; what an indexer makes of the same input. */
interface Latent extends Partial<IndexInputs> {
  readonly q: Tensor;
  readonly kv: Tensor;
}

/**
 * Pre-norm latent attention as three stages: `mla.a` down to the compressed vectors, `mla.b` from those up to the attention
 * output, `o` back into the residual stream. Keys and values are computed in full for every head, as in training: the
 * linears are quantized for the activations that they see.
 */
export function mlaStages(plan: MlaPlan, ropes: RopeCache): Stage[] {
  return [latentStage(plan), headsStage(plan, ropes), outputStage(plan)];
}

function latentStage({ query, kvA, norm, indexer }: MlaPlan): Stage {
  const first = query.kind === 'direct' ? query.linear : query.a;
  return {
    id: 'mla.a',
    feeds: [{ id: 'mla.a', linears: [linearRef(first), linearRef(kvA)] }],
    async capture(rt, weights, state) {
      return new Map([['mla.a', branchInput(rt, weights, norm, state)]]);
    },
    async advance(rt, weights, state) {
      const x = branchInput(rt, weights, norm, state);
      const q = applyLinear(rt, weights, first, x);
      const kv = applyLinear(rt, weights, kvA, x);
      const index = indexer?.kind === 'own' ? indexInputs(rt, weights, indexer, x) : {};
      x.dispose();
      return { ...state, aux: { q, kv, ...index } };
    },
  };
}

function headsStage(plan: MlaPlan, ropes: RopeCache): Stage {
  const { query, heads, plain, value } = plan;
  const headDim = plain + plan.rotary;
  const keyFeed: Feed = { id: 'mla.kv_b', linears: [linearRef(plan.kvB)] };
  return {
    id: 'mla.b',
    // q, k, v and what kvB makes in f32; the three again in 16 bits, padded to 256 dimensions.
    temporaryBytes: heads * (4 * (2 * headDim + plain + 2 * value) + 6 * 256),
    feeds: query.kind === 'direct' ? [keyFeed] : [{ id: 'mla.q_b', linears: [linearRef(query.b)] }, keyFeed],
    async capture(rt, weights, state) {
      const { q, kv } = state.aux as unknown as Latent;
      const captured = new Map<string, Tensor>();
      if (query.kind === 'latent') captured.set('mla.q_b', applyNorm(rt, weights, query.norm, q));
      return captured.set('mla.kv_b', keyInput(rt, plan, weights, kv));
    },
    async advance(rt, weights, state) {
      const { q: given, kv, ...index } = state.aux as unknown as Latent;
      const selection = selectionOf(rt, plan, weights, given, index, state, ropes);
      const rotate: Rotate = (x, count) => {
        if (!plan.rope) return;
        const { cos, sin, positions } = ropes.forBatch(rt, plan.rope, state.batch);
        const { style } = plan.rope;
        ops.rope(rt, x, cos, sin, positions, { heads: count, headDim: plan.rotary, rotary: plan.rotary, style });
      };
      const q = queries(rt, plan, weights, given, rotate);
      const attention = rt.allocate(rt.activationDtype, [state.batch.tokens, heads * value]);
      const key = { c: keyInput(rt, plan, weights, kv), turned: turnedKey(rt, plan, kv, rotate) };
      const kept = state.latents?.(latentStored(plan.latent, plan.rotary));
      if (!attendLatents(rt, weights, plan, { q, ...key, y: attention }, state, kept)) {
        const { k, v } = keysAndValues(rt, plan, weights, key, state);
        const params = { heads, kvHeads: heads, headDim, valueDim: value, scale: plan.scale };
        const columns = (of: Tensor) => ({ of, first: 0 });
        const tensors = { q: columns(q), k: columns(k), v: columns(v), y: attention };
        if (state.attend && !kept)
          state.attend({ ...tensors, ...(selection && { selected: selection }) }, params, undefined);
        else if (selection) attendSelected(rt, { q, k, v, y: attention }, selection, state.batch, params);
        else ops.attention(rt, q, k, v, state.batch.starts, attention, params);
        for (const tensor of [k, v]) tensor.dispose();
      }
      for (const tensor of [given, q, kv, ...Object.values(key), ...Object.values(index)]) tensor.dispose();
      const next = plan.indexer ? handOn(plan.indexer, selection, state) : state;
      return { ...next, aux: { attention } };
    },
  };
}

/** What an indexer chooses of the keys; undefined where tokens see all before them. */
function selectionOf(
  rt: NativeRuntime,
  { indexer, query }: MlaPlan,
  weights: BlockWeights,
  given: Tensor,
  index: Partial<IndexInputs>,
  state: BlockState,
  ropes: RopeCache,
): Selection | undefined {
  if (!indexer || query.kind === 'direct') return undefined;
  const read = applyNorm(rt, weights, query.norm, given);
  const selection = select(rt, weights, indexer, { ...(index as IndexInputs), read }, state, ropes);
  read.dispose();
  return selection;
}

/** Rotates `count` heads of x [T, count * rotary] by their positions, in place. */
type Rotate = (x: Tensor, count: number) => void;

/** Queries [T, heads * headDim] of all heads, the last dimensions of each rotated. */
function queries(rt: NativeRuntime, plan: MlaPlan, weights: BlockWeights, given: Tensor, rotate: Rotate): Tensor {
  const { query, heads, plain, rotary } = plan;
  const headDim = plain + rotary;
  const tokens = given.shape[0] as number;
  // A tensor of its own: what a stage was handed may be needed again by another sweep.
  const q = rt.allocate('f32', [tokens, heads * headDim]);
  if (query.kind === 'latent') {
    const x = applyNorm(rt, weights, query.norm, given);
    applyLinear(rt, weights, query.b, x, { y: q, accumulate: false });
    x.dispose();
  } else ops.cast(rt, given, q);
  const part = rt.allocate('f32', [tokens, heads * rotary]);
  ops.copyHeads(rt, q, part, { heads, width: rotary, fromDim: headDim, from: plain, toDim: rotary, to: 0 });
  rotate(part, heads);
  ops.copyHeads(rt, part, q, { heads, width: rotary, fromDim: rotary, from: 0, toDim: headDim, to: plain });
  part.dispose();
  return q;
}

/** The compressed vectors as kvB reads them, [T, latent]. */
function keyInput(rt: NativeRuntime, plan: MlaPlan, weights: BlockWeights, kv: Tensor): Tensor {
  const { latent, rotary, latentScale } = plan;
  const compressed = rt.allocate('f32', [kv.shape[0] as number, latent]);
  const part = { heads: 1, width: latent, fromDim: latent + rotary, from: 0, toDim: latent, to: 0 };
  ops.copyHeads(rt, kv, compressed, part);
  const normed = applyNorm(rt, weights, plan.kvNorm, compressed);
  compressed.dispose();
  if (latentScale !== 1) ops.scaleRows(rt, normed, undefined, normed, { factor: latentScale });
  return normed;
}

/** The rotary key of all heads, f32 [T, rotary], turned. */
function turnedKey(rt: NativeRuntime, { latent, rotary }: MlaPlan, kv: Tensor, rotate: Rotate): Tensor {
  const turned = rt.allocate('f32', [kv.shape[0] as number, rotary]);
  const part = { heads: 1, width: rotary, fromDim: latent + rotary, from: latent, toDim: rotary, to: 0 };
  ops.copyHeads(rt, kv, turned, part);
  rotate(turned, 1);
  return turned;
}

/** Keys [T, heads * headDim] and values [T, heads * value] of all heads; changes what they are made of where a cache is simulated. */
function keysAndValues(
  rt: NativeRuntime,
  plan: MlaPlan,
  weights: BlockWeights,
  { c, turned }: { readonly c: Tensor; readonly turned: Tensor },
  state: BlockState,
) {
  const { heads, plain, rotary, value } = plan;
  const headDim = plain + rotary;
  const tokens = c.shape[0] as number;
  if (weights.latents && !state.attend) {
    throughLatents(rt, weights.latents, c);
    throughF16(rt, turned);
  }
  const both = applyLinear(rt, weights, plan.kvB, c);
  const k = rt.allocate('f32', [tokens, heads * headDim]);
  const v = rt.allocate('f32', [tokens, heads * value]);
  const fromDim = plain + value;
  ops.copyHeads(rt, both, k, { heads, width: plain, fromDim, from: 0, toDim: headDim, to: 0 });
  ops.copyHeads(rt, both, v, { heads, width: value, fromDim, from: plain, toDim: value, to: 0 });
  const all = { heads, width: rotary, fromDim: rotary, from: 0, toDim: headDim, to: plain, shared: true };
  ops.copyHeads(rt, turned, k, all);
  both.dispose();
  return { k, v };
}
