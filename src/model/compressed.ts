import { type NativeRuntime, type Tensor, uploadTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { outputStage } from './attention.js';
import { branchInput, branchTensors } from './branch.js';
import type { CompressedPlan, CompressorPlan } from './plan-compressed.js';
import type { Batch, BlockState, BlockWeights, Stage } from './program.js';
import type { RopeCache } from './rope-cache.js';
import {
  applyLinear,
  applyNorm,
  applyNormInto,
  asInput,
  linearRef,
  linearTensors,
  normTensors,
  weightOf,
} from './weights.js';

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

/** Attention as three stages: `in` from the stream, `q_b` up to what o reads, `o` back. */
export function compressedStages(plan: CompressedPlan, ropes: RopeCache): Stage[] {
  const { qA, qB, kv, norm, qNorm, compressor, chooser } = plan;
  const into: Stage = {
    id: 'in',
    feeds: [{ id: 'in', linears: [linearRef(qA), linearRef(kv)] }],
    async capture(rt, weights, state) {
      return new Map([['in', branchInput(rt, weights, norm, state)]]);
    },
    async advance(rt, weights, state) {
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
    // q, what attention makes of it, and the part that is turned, in f32.
    temporaryBytes: 12 * plan.heads * plan.headDim,
    feeds: [{ id: 'q_b', linears: [linearRef(qB)] }],
    async capture(rt, weights, state) {
      return new Map([['q_b', applyNorm(rt, weights, qNorm, (state.aux as Inputs).q)]]);
    },
    async advance(rt, weights, state) {
      const inputs = state.aux as Inputs;
      const attention = attend(rt, weights, plan, ropes, inputs, state);
      for (const tensor of Object.values(inputs)) tensor.dispose();
      return { ...state, aux: { attention } };
    },
  };
  return [into, heads, outputStage(plan)];
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

/** A step's sequences with runs in the place of tokens. */
interface RunPast {
  readonly starts: Tensor;
  readonly totals: Tensor;
}

/** First tokens of the runs of `rate` that end in a batch's tokens, sequence by sequence. */
function newRuns({ lengths, earlier = [] }: Batch, rate: number): number[][] {
  return lengths.map((length, s) => {
    const before = Math.floor((earlier[s] ?? 0) / rate);
    const end = Math.floor(((earlier[s] ?? 0) + length) / rate);
    return Array.from({ length: end - before }, (_, w) => (before + w) * rate);
  });
}

/** Entries f32 [E, dim] of the runs that end in the batch's tokens, each turned by the position of its first token. */
function entriesOf(
  rt: NativeRuntime,
  weights: BlockWeights,
  plan: CompressedPlan,
  ropes: RopeCache,
  { rate, dim, bias, norm }: CompressorPlan,
  { x, gate }: Record<'x' | 'gate', Tensor>,
  { batch, recall }: BlockState,
): Tensor {
  const places = newRuns(batch, rate).flat();
  const y = rt.allocate('f32', [places.length, dim]);
  const width = x.shape[1] as number;
  // Of a run that has not ended its tokens are kept, and of overlapping ones those before it.
  const past = recall?.(`tokens of ${bias}`, [(width / dim) * rate, 2 * width]) ?? { starts: batch.starts };
  ops.compress(rt, { x, gate, bias: weightOf(weights, bias) }, y, past, { rate });
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
  state: BlockState,
): Tensor {
  const { batch, rows } = state;
  const { heads, headDim: dim, compressor, chooser, window } = plan;
  const read = applyNorm(rt, weights, plan.qNorm, inputs.q);
  const q = applyLinear(rt, weights, plan.qB, read);
  const perHead = q.view([batch.tokens * heads, dim]);
  ops.rmsnorm(rt, perHead, undefined, perHead, { eps: plan.epsilon });
  const k = rt.allocate('f32', inputs.kv.shape);
  applyNormInto(rt, weights, plan.kvNorm, inputs.kv, k);
  turnLast(rt, ropes, plan, batch, q, { heads, dim });
  turnLast(rt, ropes, plan, batch, k, { heads: 1, dim });
  const entries = compressor
    ? entriesOf(rt, weights, plan, ropes, compressor, { x: inputs.x!, gate: inputs.gate! }, state)
    : rt.allocate('f32', [0, dim]);
  const selected = chooser && choose(rt, weights, plan, chooser, ropes, { ...inputs, read }, state);
  const y = rt.allocate('f32', q.shape);
  const rate = compressor?.rate ?? 0;
  const kept = rows && keep(rt, { k, entries }, dim, rate, batch, rows);
  const seen = { k: kept?.k ?? k, entries: kept?.entries ?? entries };
  const tensors = { q, ...seen, sinks: weightOf(weights, plan.sinks), selected };
  ops.compressedAttention(rt, tensors, y, kept?.step ?? { starts: batch.starts }, {
    ...{ heads, window, rate, scale: 1 / Math.sqrt(dim) },
  });
  // Values were turned with their keys.
  turnLast(rt, ropes, plan, batch, y, { heads, dim, back: true });
  for (const tensor of [read, perHead, q, k, entries, ...(selected ? [selected] : [])]) tensor.dispose();
  const out = grouped(rt, weights, plan, y);
  y.dispose();
  return out;
}

/** Puts a step's keys and entries to those that are kept, and says where all of them are. */
function keep(
  rt: NativeRuntime,
  { k, entries }: Record<'k' | 'entries', Tensor>,
  dim: number,
  rate: number,
  batch: Batch,
  rows: NonNullable<BlockState['rows']>,
): { k: Tensor; entries: Tensor; step: { starts: Tensor; slots: Tensor; totals: Tensor } } {
  const keys = rows('keys', dim) as Required<ReturnType<typeof rows>>;
  ops.appendRows(rt, k, keys);
  const { slots, totals, state } = keys.kept;
  const step = { starts: keys.starts, slots, totals };
  if (rate === 0) return { k: state, entries, step };
  const { kept } = rows('entries', dim, rate) as Required<ReturnType<typeof rows>>;
  if (entries.shape[0] !== 0) {
    const runs = runPast(rt, batch, rate);
    ops.appendRows(rt, entries, { starts: runs.starts, kept: { ...kept, totals: runs.totals } });
    for (const tensor of Object.values(runs)) tensor.dispose();
  }
  return { k: state, entries: kept.state, step };
}

function runPast(rt: NativeRuntime, batch: Batch, rate: number): RunPast & Record<string, Tensor> {
  const runs = newRuns(batch, rate).map(({ length }) => length);
  const starts = new Int32Array(runs.length + 1);
  for (const [s, count] of runs.entries()) starts[s + 1] = (starts[s] as number) + count;
  const totals = batch.lengths.map((length, s) => Math.floor(((batch.earlier?.[s] ?? 0) + length) / rate));
  const ints = (values: Int32Array): Tensor => uploadTyped(rt, 'i32', [values.length], values);
  return { starts: ints(starts), totals: ints(Int32Array.from(totals)) };
}

/** The entries that an indexer chooses for each token, I32 [T, top]. */
function choose(
  rt: NativeRuntime,
  weights: BlockWeights,
  plan: CompressedPlan,
  chooser: NonNullable<CompressedPlan['chooser']>,
  ropes: RopeCache,
  { read, indexX, indexGate, indexWeights }: Record<string, Tensor>,
  state: BlockState,
): Tensor {
  const { batch, rows } = state;
  const { heads, dim, top, compressor } = chooser;
  const k = entriesOf(rt, weights, plan, ropes, compressor, { x: indexX!, gate: indexGate! }, state);
  const q = applyLinear(rt, weights, chooser.q, read!);
  turnLast(rt, ropes, plan, batch, q, { heads, dim });
  const y = rt.allocate('i32', [batch.tokens, top]);
  const past = rows?.('index', dim, compressor.rate) ?? { starts: batch.starts };
  ops.indexKeys(rt, { q, k, weights: indexWeights! }, y, past, { heads, top, rate: compressor.rate });
  for (const tensor of [k, q]) tensor.dispose();
  return y;
}

/** Each group of heads through its own rows of oA. */
function grouped(rt: NativeRuntime, weights: BlockWeights, { oA, groups }: CompressedPlan, x: Tensor): Tensor {
  const [tokens, rank] = [x.shape[0] as number, oA.n / groups];
  const whole = weightOf(weights, `${oA.name}.weight`);
  const read = asInput(rt, x);
  const y = rt.allocate(rt.activationDtype, [tokens, oA.n]);
  for (let group = 0; group < groups; group++) {
    const part = rt.allocate(read.dtype, [tokens, oA.k]);
    const made = rt.allocate(rt.activationDtype, [tokens, rank]);
    const rows = whole.view([rank, oA.k], group * rank * oA.k);
    ops.sliceColumns(rt, read, part, { first: group * oA.k });
    ops.linear(rt, part, rows, undefined, made);
    ops.placeColumns(rt, made, y, { first: group * rank });
    for (const tensor of [part, made, rows]) tensor.dispose();
  }
  read.dispose();
  return y;
}
