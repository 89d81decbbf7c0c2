import assert from 'node:assert/strict';
import path from 'node:path';
import test from 'node:test';
import { addon, createRuntime, type NativeRuntime, type Tensor, typed } from '../../../native/binding.js';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import { Room } from '../../../src/calibrate/room.js';
import { disposeStatistics, type Streams, sweepStatistics } from '../../../src/calibrate/statistics.js';
import { ActivationStream, copyState } from '../../../src/calibrate/streams.js';
import { LpqError } from '../../../src/core/error.js';
import { batchSequences } from '../../../src/model/batch.js';
import { embedBatches, loadOuter } from '../../../src/model/forward.js';
import { openModel } from '../../../src/model/graph.js';
import type { BlockWeights, Stage } from '../../../src/model/program.js';
import { loadWeights } from '../../../src/model/weights.js';
import { ARCHITECTURES, plainSource } from '../model/fixtures.js';

const sequences = [Int32Array.of(40, 41, 30, 7), Int32Array.of(10, 20), Int32Array.of(9, 9, 9, 9, 9)];
const room = () => new Room(Number.POSITIVE_INFINITY);

interface Prepared {
  readonly rt: NativeRuntime;
  readonly stages: readonly Stage[];
  readonly weights: BlockWeights;
  /** Keeps what stages leave. */
  readonly stream: ActivationStream;
  /** Keeps nothing between stages, so that every later stage is computed again. */
  readonly lean: ActivationStream;
  /** As much of the data as `paired` batches hold. */
  readonly first: ActivationStream;
  readonly h: readonly Tensor[];
}

async function prepare(dir: string, maxTokens: number, paired = 1): Promise<Prepared> {
  const rt = createRuntime(1);
  const source = plainSource(dir);
  const graph = openModel(source);
  const outer = await loadOuter(rt, source, graph);
  const weights = await loadWeights(rt, source, graph.blocks[0]!.tensors.keys());
  const states = embedBatches(rt, graph, outer, batchSequences(rt, sequences, maxTokens));
  const twins = () => states.map((state) => copyState(rt, state));
  const lean = new ActivationStream(rt, twins(), 0, 0);
  const first = new ActivationStream(rt, twins().slice(0, paired));
  const { stages } = graph.blocks[0]!;
  return { rt, stages, weights, stream: new ActivationStream(rt, states), lean, first, h: states.map(({ h }) => h) };
}

/** Streams of one section. */
const streamsOf = (quantized: ActivationStream, original?: ActivationStream, driftScale = 1): Streams => ({
  quantized,
  original,
  driftScale,
  sections: [{ batches: quantized.batches, paired: original?.batches ?? 0 }],
  apart: false,
});
const alone = (quantized: ActivationStream): Streams => streamsOf(quantized);

async function model(dir: string, rt: NativeRuntime) {
  const source = plainSource(dir);
  const graph = openModel(source);
  return [graph, await loadOuter(rt, source, graph)] as const;
}

async function sweep({ rt, stages, weights }: Prepared, streams: Streams, index: number, feeds?: ReadonlySet<string>) {
  const stage = stages[index]!;
  const ids = feeds ?? new Set(stage.feeds.map(({ id }) => id));
  const swept = await sweepStatistics(rt, streams, { stage, quantized: weights, original: weights }, ids, room());
  assert.equal(swept.length, 1);
  return swept[0]!;
}

test('Hessians are the sums over all batches of what the stage captures, for any batching', async () => {
  const dir = path.join(shareDirectory(), 'tiny-llama');
  const many = await prepare(dir, 5);
  const one = await prepare(dir, 100);
  assert.deepEqual([many.stream.batches, one.stream.batches], [3, 1]);
  for (const [i, stage] of many.stages.entries()) {
    const split = await sweep(many, alone(many.stream), i);
    const recomputed = await sweep(many, alone(many.lean), i);
    const whole = await sweep(one, alone(one.stream), i);
    const step = { stage, weights: one.weights };
    const x = typed((await one.stream.visit(0, room(), step)).get(stage.feeds[0]!.id)!);
    await one.rt.sync();
    for (const [id, { h: hessian, drift, tokens }] of split) {
      const k = hessian.shape[0]!;
      assert.equal(tokens, 11);
      assert.equal(drift, undefined);
      const h = typed<Float64Array>(hessian);
      assert.deepEqual(typed(recomputed.get(id)!.h), h);
      const other = typed<Float64Array>(whole.get(id)!.h);
      for (const [a, b] of [
        [0, 0],
        [3, 200],
        [k - 1, 17],
      ] as const) {
        let [want, size] = [0, 0];
        for (let t = 0; t < 11; t++) {
          const product = x[t * k + a]! * x[t * k + b]!;
          want += product;
          size += Math.abs(product);
        }
        // Up to 11 products summed in f32 before f64: each addition is off by 2^-24 of what it adds to.
        for (const got of [h, other])
          assert.ok(Math.abs(got[a * k + b]! - want) <= 11 * 2 ** -24 * size, `${id} ${a} ${b}`);
      }
    }
    for (const statistics of [split, recomputed, whole]) disposeStatistics(statistics);
    for (const { stream, lean, weights } of [many, one])
      for (const each of [stream, lean]) each.follow({ stage, weights });
  }
});

test('D is the sum of (xf - xq) xqᵀ over the batches that both models see, scaled to all rows', async () => {
  const dir = path.join(shareDirectory(), 'tiny-llama');
  const prepared = await prepare(dir, 5, 2);
  const { stages, weights, stream, first, rt } = prepared;
  assert.deepEqual([stream.batches, first.batches], [3, 2]);
  // Two models: the quantized one has twice the norm, hence twice the input.
  const name = [...weights.keys()].find((key) => key.endsWith('input_layernorm.weight'))!;
  const twice = rt.allocate('f32', weights.get(name)!.shape);
  const host = rt.allocate('f32', weights.get(name)!.shape);
  rt.enqueue('cast', [weights.get(name)!], [host]);
  await rt.sync();
  typed(twice).set(typed(host).map((w) => 2 * w));
  const quantized: BlockWeights = new Map([...weights, [name, twice]]);
  const streams = streamsOf(stream, first, 11 / 6);
  const stage = stages[0]!;
  const capture = { stage, quantized, original: weights };
  const [swept] = await sweepStatistics(rt, streams, capture, new Set(['qkv']), room());
  const got = swept!.get('qkv')!;
  const paired = (await sweep(prepared, alone(first), 0)).get('qkv')!;
  // xq = 2 xf: D = (1/2 - 1) sum xq xqᵀ = -2 sum xf xfᵀ of the paired rows.
  const h = typed<Float64Array>(paired.h);
  const d = typed<Float64Array>(got.drift!);
  assert.equal(got.tokens, 11);
  d.forEach((value, i) => {
    const want = (-2 * h[i]! * 11) / 6;
    assert.ok(Math.abs(value - want) <= 1e-12 * (1 + Math.abs(want)), `${i}: ${value} ${want}`);
  });
});

test('sections are summed from zero and added in their order, on the device that has the first of them or apart', async () => {
  const dir = path.join(shareDirectory(), 'tiny-llama');
  const sections = [
    { batches: 1, paired: 1 },
    { batches: 2, paired: 1 },
  ];
  const run = async (apart: boolean) => {
    const prepared = await prepare(dir, 5);
    const { rt, stages, weights, stream, h } = prepared;
    const states = embedBatches(rt, ...(await model(dir, rt)), batchSequences(rt, sequences, 5));
    assert.equal(h.length, 3);
    // The paired batch of each section: the first and the second.
    const original = new ActivationStream(rt, states.slice(0, 2));
    const streams: Streams = { quantized: stream, original, driftScale: 1.5, sections, apart };
    const capture = { stage: stages[0]!, quantized: weights, original: weights };
    const swept = await sweepStatistics(rt, streams, capture, new Set(['qkv']), room());
    return swept.map((sums) => {
      const { h, drift, tokens } = sums.get('qkv')!;
      return { tokens, h: typed<Float64Array>(h), drift: typed<Float64Array>(drift!) };
    });
  };
  const [both, ...none] = await run(false);
  const [one, two, ...more] = await run(true);
  assert.deepEqual([none, more], [[], []]);
  assert.deepEqual([one!.tokens, two!.tokens, both!.tokens], [4, 7, 11]);
  for (const pick of ['h', 'drift'] as const)
    both![pick].forEach((sum, i) => {
      assert.equal(sum, one![pick][i]! + two![pick][i]!);
    });
});

test('experts: rows add up to tokens times k, and a filter leaves the others out', async () => {
  const prepared = await prepare(path.join(ARCHITECTURES, 'qwen3_moe'), 6);
  const { stages, weights, stream, first } = prepared;
  for (const i of [0, 1]) for (const each of [stream, first]) each.follow({ stage: stages[i]!, weights });
  const all = await sweep(prepared, streamsOf(stream, first, 2), 2);
  assert.equal(all.size, 4);
  assert.equal(
    [...all.values()].reduce((sum, { tokens }) => sum + tokens, 0),
    11 * 2,
  );
  assert.ok(
    [...all.values()].every(({ drift }) => drift === undefined),
    'rows of experts cannot be matched',
  );
  const some = await sweep(prepared, alone(stream), 2, new Set(['experts.3.gate_up']));
  assert.deepEqual([...some.keys()], ['experts.3.gate_up']);
  assert.deepEqual(typed(some.get('experts.3.gate_up')!.h), typed(all.get('experts.3.gate_up')!.h));
});

test('an input with NaN is blamed on its linears', async () => {
  assert.ok(addon().operations().includes('gram_accumulate'));
  const prepared = await prepare(path.join(shareDirectory(), 'tiny-llama'), 100);
  await prepared.rt.sync();
  typed(prepared.h[0]!)[300] = Number.NaN;
  await assert.rejects(
    sweep(prepared, alone(prepared.stream), 0),
    (error) =>
      error instanceof LpqError &&
      error.code === 'LPQ_MODULE_NUMERICS' &&
      /layers\.0\.self_attn\.q_proj, .*k_proj, .*v_proj/.test(error.message),
  );
});
