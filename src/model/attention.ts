import { type NativeRuntime, type Tensor, uploadTyped } from '../../native/binding.js';
import type { HeadNorms } from '../../native/cache-ops.js';
import { type AttentionParams, ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import { addBranch, branchInput, branchTensors } from './branch.js';
import { cachedAttention } from './cached-attention.js';
import { apart as alone, type Columns, firstOf } from './columns.js';
import { attendSelected, indexerTensors, indexInputs, type Selection, select } from './indexer.js';
import { keptBy, withKept } from './kept-keys.js';
import type { AttentionPlan, BranchPlan, LinearPlan, NormPlan } from './plan.js';
import type { TemperaturePlan } from './plan-attention.js';
import type { IndexerPlan } from './plan-indexer.js';
import type { AttentionTensors, Batch, BlockState, BlockWeights, Stage } from './program.js';
import { project, projectionRefs, projectionTensors } from './projections.js';
import type { RopeCache } from './rope-cache.js';
import { type KvChannels, type KvScheme, kvFormAt } from './source.js';
import { rotate, rotateOne } from './turn.js';
import { applyNormTo, asInput, linearRef, linearTensors, normTensors, weightOf } from './weights.js';

export function attentionTensors(plan: AttentionPlan): [string, readonly number[]][] {
  return [
    ...branchTensors(plan),
    ...projectionTensors(plan),
    ...linearTensors(plan.o),
    ...normTensors(plan.qNorm),
    ...normTensors(plan.kNorm),
    ...indexerTensors(plan.indexer),
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
  const qkv: Stage = {
    id: 'qkv',
    feeds: [{ id: 'qkv', linears: projectionRefs(plan), ...(plan.outputGate && { apart: true }) }],
    async capture(rt, weights, state) {
      return new Map([['qkv', branchInput(rt, weights, plan.norm, state)]]);
    },
    async advance(rt, weights, state) {
      const reader = weights.joined?.get(plan.q.name)?.name ?? plan.fused?.linear.name;
      const x = branchInput(rt, weights, plan.norm, state, reader);
      const { attention, next } = attend(rt, weights, plan, ropes, state, x);
      const aux: Record<string, Tensor> = { attention };
      if (beside) {
        const same = beside.norm !== undefined && beside.norm.weight === plan.norm?.weight;
        aux[PARALLEL_INPUT] = same ? x.view(x.shape) : branchInput(rt, weights, beside.norm, state);
      }
      x.dispose();
      return { ...next, aux };
    },
  };

  return [qkv, outputStage(plan)];
}

/** The attention output [T, heads * valueDim] of the normalised input x [T,C], and the state with what later blocks read of it. */
function attend(
  rt: NativeRuntime,
  weights: BlockWeights,
  plan: AttentionPlan,
  ropes: RopeCache,
  state: BlockState,
  x: Tensor,
): { attention: Tensor; next: BlockState } {
  const { heads, kvHeads, headDim, valueDim, valueScale, reads } = plan;
  const kv = kvFormAt(weights.kv, reads ?? plan.index);
  const made = project(rt, weights, plan, x);
  const { k, v } = made;
  const gated = plan.outputGate && splitGate(rt, made.q, plan);
  const q = gated ? { of: gated.q, first: 0 } : made.q;
  const { normsLast, temperature } = plan;
  // A cache may take norms and rotation with its own.
  const apart = normsLast || temperature !== undefined;
  const norms = !apart && state.attend && headNorms(weights, plan);
  const normalize = (): void => {
    if (plan.qNorm) applyNormTo(rt, weights, plan.qNorm, q, heads * headDim);
    if (plan.kNorm) applyNormTo(rt, weights, plan.kNorm, k, kvHeads * headDim);
  };
  if (plan.vNorm && reads === undefined) applyNormTo(rt, weights, plan.vNorm, v, kvHeads * valueDim);
  if (!norms && !normsLast) normalize();
  const rotation = plan.rope && ropes.forBatch(rt, plan.rope, state.batch);
  const attention = rt.allocate(rt.activationDtype, [state.batch.tokens, heads * valueDim]);
  const sinks = plan.sinks === undefined ? undefined : weightOf(weights, plan.sinks);
  const { scale, window, softCap } = plan;
  const widths = { heads, kvHeads, headDim, ...(valueDim !== headDim && { valueDim }) };
  const params = { ...widths, scale, window, ...(softCap > 0 && { softCap }) };
  if (apart) rotate(rt, { q, k, ...(rotation && { rotation }) }, params);
  if (normsLast) normalize();
  if (temperature) warm(rt, ropes, temperature, q, heads * headDim, state.batch);
  const tensors = { q, k, v, y: attention, ...(norms && { norms }), ...(rotation && !apart && { rotation }) };
  let next = state;
  const selected = plan.indexer && selectionOf(rt, weights, plan.indexer, ropes, state, x);
  const chosen = { ...(selected && { selected }), ...(reads !== undefined && { reads }) };
  if (state.attend) {
    requireOneChunk(plan, state.batch);
    state.attend({ ...tensors, ...chosen }, params, sinks);
  } else if (reads !== undefined) {
    rotateOne(rt, q, heads, headDim, rotation);
    const kept = keptBy(rt, weights, reads, state);
    const [keys, values] = kept.map((of) => ({ of, first: 0 })) as [Columns, Columns];
    attendWhole(rt, kv, { ...tensors, k: keys, v: values }, state.batch, params, sinks);
    for (const tensor of kept) tensor.dispose();
  } else {
    rotate(rt, tensors, params);
    next = withKept(rt, weights, plan, tensors, state);
    attendWhole(rt, kv, { ...tensors, ...chosen }, chunked(rt, state.batch, plan.chunk), params, sinks);
  }
  if (gated) {
    const gate = asInput(rt, gated.gate);
    ops.gatedActivation(rt, gate, attention, attention, { act: 'sigmoid' });
    for (const tensor of [gated.q, gated.gate, gate]) tensor.dispose();
  }
  selected?.indices.dispose();
  // Of weighted means of values, as good as of the values.
  if (valueScale !== 1) ops.scaleRows(rt, attention, undefined, attention, { factor: valueScale });
  made.dispose();
  return { attention, next };
}

/** What an indexer of the same input x [T,C] chooses. */
function selectionOf(
  rt: NativeRuntime,
  weights: BlockWeights,
  plan: IndexerPlan,
  ropes: RopeCache,
  state: BlockState,
  x: Tensor,
): Selection | undefined {
  const inputs = indexInputs(rt, weights, plan, x);
  const selected = select(rt, weights, plan, { ...inputs, read: x }, state, ropes);
  for (const tensor of Object.values(inputs)) tensor.dispose();
  return selected;
}

/** Queries and gates [T, heads * headDim] of columns that have them head by head. */
function splitGate(
  rt: NativeRuntime,
  { of }: Columns,
  { heads, headDim: width }: AttentionPlan,
): Record<'q' | 'gate', Tensor> {
  const part = (from: number): Tensor => {
    const y = rt.allocate(of.dtype, [of.shape[0] as number, heads * width]);
    ops.copyHeads(rt, of, y, { heads, width, fromDim: 2 * width, from, toDim: width, to: 0 });
    return y;
  };
  return { q: part(0), gate: part(width) };
}

/** The batch with each chunk as a sequence of its own, as far as attention goes. */
export function chunked(rt: NativeRuntime, batch: Batch, chunk: number): Batch {
  if (chunk === 0 || batch.longest <= chunk) return batch;
  const lengths = batch.lengths.flatMap((length) =>
    Array.from({ length: Math.ceil(length / chunk) }, (_, i) => Math.min(chunk, length - i * chunk)),
  );
  const starts = new Int32Array(lengths.length + 1);
  for (const [i, length] of lengths.entries()) starts[i + 1] = (starts[i] as number) + length;
  return { ...batch, lengths, longest: chunk, starts: uploadTyped(rt, 'i32', [starts.length], starts) };
}

/** A cache of keys and values keeps no chunks apart: throws LPQ_CONFIG for a sequence of more than one. */
function requireOneChunk({ chunk, q }: AttentionPlan, { longest }: Batch): void {
  if (chunk === 0 || longest <= chunk) return;
  throw new LpqError(
    'LPQ_CONFIG',
    `'${q.name}' belongs to a block that attends to chunks of tokens, and caches hold one chunk`,
    {
      got: `a sequence of ${longest} tokens`,
      expected: `at most ${chunk}`,
      hint: 'Generate fewer tokens, or from a shorter prompt.',
    },
  );
}

/** Multiplies the queries of each token by what its position says. */
function warm(
  rt: NativeRuntime,
  ropes: RopeCache,
  plan: TemperaturePlan,
  { of, first }: Columns,
  width: number,
  batch: Batch,
): void {
  const scales = rt.allocate('f32', [batch.tokens, 1]);
  ops.embedding(rt, batch.positions, ropes.temperatures(rt, plan, batch.longest), scales);
  ops.scaleRows(rt, of, scales, of, { first, width });
  scales.dispose();
}

/** RMS norms of the heads of q and k, where both have one for all heads. */
function headNorms(weights: BlockWeights, { qNorm, kNorm, headDim }: AttentionPlan): HeadNorms | undefined {
  const each = [qNorm, kNorm].flatMap((norm) =>
    norm?.kind === 'rms' && norm.size === headDim && norm.turns === 1 && norm.weight !== undefined ? [norm] : [],
  );
  const [q, k] = each;
  if (!q || !k || q.epsilon !== k.epsilon || q.offset !== k.offset) return undefined;
  const weight = (norm: NormPlan): Tensor => weightOf(weights, norm.weight as string);
  return { q: weight(q), k: weight(k), eps: q.epsilon, offset: q.offset };
}

/** Attention of whole sequences, through the cache of keys and values that the weights ask for. q and k have been turned. */
function attendWhole(
  rt: NativeRuntime,
  kv: KvChannels | KvScheme | undefined,
  { q, k, v, y, selected }: AttentionTensors,
  batch: Batch,
  p: AttentionParams,
  sinks: Tensor | undefined,
): void {
  const { valueDim = p.headDim } = p;
  const widths = [p.heads * p.headDim, p.kvHeads * p.headDim, p.kvHeads * valueDim] as const;
  if (!kv && !selected) {
    const [qFirst, kFirst, vFirst] = [q, k, v].map((columns, i) => firstOf(columns, widths[i] as number));
    const firsts = qFirst === undefined ? {} : { qFirst, kFirst: kFirst as number, vFirst: vFirst as number };
    ops.attention(rt, q.of, k.of, v.of, batch.starts, y, { ...p, ...firsts }, sinks);
    return;
  }
  const [queries, keys, values] = [q, k, v].map((columns, i) => alone(rt, columns, widths[i] as number)) as [
    Tensor,
    Tensor,
    Tensor,
  ];
  if (kv && 'form' in kv) cachedAttention(rt, kv, { q: queries, k: keys, v: values, y }, batch, p, sinks);
  else {
    if (kv) for (const cached of [keys, values]) ops.simulateKv(rt, cached, batch.starts, cached, kv);
    if (selected) attendSelected(rt, { q: queries, k: keys, v: values, y }, selected, { starts: batch.starts }, p);
    else ops.attention(rt, queries, keys, values, batch.starts, y, p, sinks);
  }
  for (const tensor of [queries, keys, values]) tensor.dispose();
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
      const next = { ...state, aux };
      addBranch(rt, weights, plan, plan.o, attention, next);
      attention.dispose();
      return next;
    },
  };
}
