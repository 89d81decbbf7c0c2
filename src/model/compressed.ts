import { type NativeRuntime, type Tensor, uploadTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import { outputStage } from './attention.js';
import { branchInput, branchTensors } from './branch.js';
import { requireHost } from './mixers/state.js';
import type { CompressedPlan, CompressorPlan } from './plan-compressed.js';
import type { Batch, BlockState, BlockWeights, Stage } from './program.js';
import type { RopeCache } from './rope-cache.js';
import { applyLinear, applyNorm, linearRef, linearTensors, normTensors, weightOf } from './weights.js';

function compressorTensors(plan: CompressorPlan | undefined): [string, readonly number[]][] {
  if (!plan) return [];
  return [...[plan.x, plan.gate].flatMap(linearTensors), [plan.bias, [plan.rate, plan.x.n]], ...normTensors(plan.norm)];
}

export function compressedTensors(plan: CompressedPlan): [string, readonly number[]][] {
  const { compressor, chooser } = plan;
  return [
    ...branchTensors(plan),
    ...[plan.qA, plan.qB, plan.kv, plan.oA, plan.o].flatMap(linearTensors),
    ...[plan.qNorm, plan.kvNorm].flatMap(normTensors),
    [plan.sinks, [plan.heads]],
    ...compressorTensors(compressor),
    ...(chooser ? [chooser.q, chooser.weights].flatMap(linearTensors) : []),
    ...compressorTensors(chooser?.compressor),
  ];
}

/** What the first stage hands on: the compressed query and the key, f32; what compressors and the indexer read of the same input. */
interface Inputs extends Record<string, Tensor> {
  readonly q: Tensor;
  readonly kv: Tensor;
}

/** Attention as three stages: `in` from the stream, `q_b` up to what o reads, `o` back. Throws LPQ_DEVICE off the CPU. */
export function compressedStages(plan: CompressedPlan, ropes: RopeCache): Stage[] {
  const { qA, qB, kv, norm, qNorm, compressor, chooser } = plan;
  const into: Stage = {
    id: 'in',
    feeds: [{ id: 'in', linears: [linearRef(qA), linearRef(kv)] }],
    async capture(rt, weights, state) {
      return new Map([['in', branchInput(rt, weights, norm, state)]]);
    },
    async advance(rt, weights, state) {
      requireWhole(rt, qA.name, state);
      const x = branchInput(rt, weights, norm, state);
      const apply = (linear: CompressedPlan['qA']) => applyLinear(rt, weights, linear, x);
      const aux = {
        ...{ q: apply(qA), kv: apply(kv) },
        ...(compressor && { x: apply(compressor.x), gate: apply(compressor.gate) }),
        ...(chooser && {
          indexX: apply(chooser.compressor.x),
          indexGate: apply(chooser.compressor.gate),
          indexWeights: apply(chooser.weights),
        }),
      };
      x.dispose();
      return { ...state, aux };
    },
  };
  const heads: Stage = {
    id: 'q_b',
    feeds: [{ id: 'q_b', linears: [linearRef(qB)] }],
    async capture(rt, weights, state) {
      return new Map([['q_b', applyNorm(rt, weights, qNorm, (state.aux as Inputs).q)]]);
    },
    async advance(rt, weights, state) {
      const inputs = state.aux as Inputs;
      const attention = attend(rt, weights, plan, ropes, inputs, state.batch);
      for (const tensor of Object.values(inputs)) tensor.dispose();
      return { ...state, aux: { attention } };
    },
  };
  return [into, heads, outputStage(plan)];
}

function requireWhole(rt: NativeRuntime, name: string, { attend }: BlockState): void {
  requireHost(rt, name, 'compressed attention');
  if (attend)
    throw new LpqError('LPQ_CONFIG', `'${name}' is of compressed attention, whose entries are not kept between steps`, {
      hint: 'Use lpq eval for this model; it cannot generate text.',
    });
}

/** Turns the last dimensions of `heads` heads of x [T, heads * dim] in place, forth or back. */
function turnLast(
  rt: NativeRuntime,
  ropes: RopeCache,
  { rope }: CompressedPlan,
  batch: Batch,
  x: Tensor,
  {
    heads,
    dim,
    positions = batch.positions,
    back = false,
  }: { heads: number; dim: number; positions?: Tensor; back?: boolean },
): void {
  const { cos, sin, rotary, style } = ropes.forBatch(rt, rope, batch);
  const part = rt.allocate('f32', [x.shape[0] as number, heads * rotary]);
  const from = dim - rotary;
  ops.copyHeads(rt, x, part, { heads, width: rotary, fromDim: dim, from, toDim: rotary, to: 0 });
  const turn = back ? ops.ropeBackward : ops.rope;
  turn(rt, part, cos, sin, positions, { heads, headDim: rotary, rotary, style });
  ops.copyHeads(rt, part, x, { heads, width: rotary, fromDim: rotary, from: 0, toDim: dim, to: from });
  part.dispose();
}

/** Entries f32 [E, dim] of the full runs of all sequences, each turned by the position of its first token. */
function entriesOf(
  rt: NativeRuntime,
  weights: BlockWeights,
  plan: CompressedPlan,
  ropes: RopeCache,
  { rate, dim, bias, norm }: CompressorPlan,
  { x, gate }: Record<'x' | 'gate', Tensor>,
  batch: Batch,
): Tensor {
  const places = batch.lengths.flatMap((length) =>
    Array.from({ length: Math.floor(length / rate) }, (_, w) => w * rate),
  );
  const y = rt.allocate('f32', [places.length, dim]);
  ops.compress(rt, { x, gate, bias: weightOf(weights, bias), starts: batch.starts }, y, { rate });
  if (places.length === 0) return y;
  applyNorm(rt, weights, norm, y, true);
  const positions = uploadTyped(rt, 'i32', [places.length], Int32Array.from(places));
  turnLast(rt, ropes, plan, batch, y, { heads: 1, dim, positions });
  positions.dispose();
  return y;
}

/** What o reads, f32 [T, groups * rank]. */
function attend(
  rt: NativeRuntime,
  weights: BlockWeights,
  plan: CompressedPlan,
  ropes: RopeCache,
  inputs: Inputs,
  batch: Batch,
): Tensor {
  const { heads, headDim: dim, compressor, chooser, window } = plan;
  const read = applyNorm(rt, weights, plan.qNorm, inputs.q);
  const q = applyLinear(rt, weights, plan.qB, read);
  const perHead = q.view([batch.tokens * heads, dim]);
  ops.rmsnorm(rt, perHead, undefined, perHead, { eps: plan.epsilon });
  const k = applyNorm(rt, weights, plan.kvNorm, inputs.kv);
  turnLast(rt, ropes, plan, batch, q, { heads, dim });
  turnLast(rt, ropes, plan, batch, k, { heads: 1, dim });
  const entries = compressor
    ? entriesOf(rt, weights, plan, ropes, compressor, { x: inputs.x!, gate: inputs.gate! }, batch)
    : rt.allocate('f32', [0, dim]);
  const selected = chooser && choose(rt, weights, plan, chooser, ropes, { ...inputs, read }, batch);
  const y = rt.allocate('f32', q.shape);
  const tensors = { q, k, entries, sinks: weightOf(weights, plan.sinks), starts: batch.starts, selected };
  const rate = compressor?.rate ?? 0;
  ops.compressedAttention(rt, tensors, y, { heads, window, rate, scale: 1 / Math.sqrt(dim) });
  // Values were turned with their keys.
  turnLast(rt, ropes, plan, batch, y, { heads, dim, back: true });
  for (const tensor of [read, perHead, q, k, entries, ...(selected ? [selected] : [])]) tensor.dispose();
  const out = grouped(rt, weights, plan, y);
  y.dispose();
  return out;
}

/** The entries that an indexer chooses for each token, I32 [T, top]. */
function choose(
  rt: NativeRuntime,
  weights: BlockWeights,
  plan: CompressedPlan,
  chooser: NonNullable<CompressedPlan['chooser']>,
  ropes: RopeCache,
  { read, indexX, indexGate, indexWeights }: Record<string, Tensor>,
  batch: Batch,
): Tensor {
  const { heads, dim, top, compressor } = chooser;
  const k = entriesOf(rt, weights, plan, ropes, compressor, { x: indexX!, gate: indexGate! }, batch);
  const q = applyLinear(rt, weights, chooser.q, read!);
  turnLast(rt, ropes, plan, batch, q, { heads, dim });
  const y = rt.allocate('i32', [batch.tokens, top]);
  ops.indexKeys(
    rt,
    { q, k, weights: indexWeights! },
    y,
    { starts: batch.starts },
    { heads, top, rate: compressor.rate },
  );
  for (const tensor of [k, q]) tensor.dispose();
  return y;
}

/** Each group of heads through its own rows of oA. */
function grouped(rt: NativeRuntime, weights: BlockWeights, { oA, groups }: CompressedPlan, x: Tensor): Tensor {
  const [tokens, rank] = [x.shape[0] as number, oA.n / groups];
  const whole = weightOf(weights, `${oA.name}.weight`);
  const y = rt.allocate(rt.activationDtype, [tokens, oA.n]);
  for (let group = 0; group < groups; group++) {
    const part = rt.allocate('f32', [tokens, oA.k]);
    const made = rt.allocate(rt.activationDtype, [tokens, rank]);
    const rows = whole.view([rank, oA.k], group * rank * oA.k);
    ops.sliceColumns(rt, x, part, { first: group * oA.k });
    ops.linear(rt, part, rows, undefined, made);
    ops.placeColumns(rt, made, y, { first: group * rank });
    for (const tensor of [part, made, rows]) tensor.dispose();
  }
  return y;
}
