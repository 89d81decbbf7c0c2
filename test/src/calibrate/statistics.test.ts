import assert from 'node:assert/strict';
import path from 'node:path';
import test from 'node:test';
import { addon, createRuntime, typed } from '../../../native/binding.js';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import { disposeStatistics, stageStatistics } from '../../../src/calibrate/statistics.js';
import { ActivationStream, copyState } from '../../../src/calibrate/streams.js';
import { LpqError } from '../../../src/core/error.js';
import { batchSequences } from '../../../src/model/batch.js';
import { embedBatches, loadOuter } from '../../../src/model/forward.js';
import { openModel } from '../../../src/model/graph.js';
import { loadWeights } from '../../../src/model/weights.js';
import { plainSource, SHARED, skipWithout } from '../model/fixtures.js';
import { ReferenceRuntime } from '../model/reference-runtime.js';

const sequences = [Int32Array.of(40, 41, 300, 7), Int32Array.of(100, 200), Int32Array.of(9, 9, 9, 9, 9)];

async function prepare(rt: ReferenceRuntime, dir: string, maxTokens: number) {
  const source = plainSource(dir);
  const graph = openModel(source);
  const outer = await loadOuter(rt, source, graph);
  const weights = await loadWeights(rt, source, graph.blocks[0]!.tensors.keys());
  const states = embedBatches(rt, graph, outer, batchSequences(rt, sequences, maxTokens));
  const { stages } = graph.blocks[0]!;
  // keepBytes 0: nothing between stages is kept, so every later stage is recomputed from a copy.
  const lean = new ActivationStream(
    rt,
    states.map((state) => copyState(rt, state)),
    0,
  );
  const stream = new ActivationStream(rt, states);
  for (const each of [lean, stream]) each.enter(stages, weights);
  return { stages, weights, states, stream, lean };
}

test('Hessians are the sums over all batches of what the stage captures, for any batching', async () => {
  const rt = new ReferenceRuntime();
  const dir = path.join(shareDirectory(), 'tiny-llama');
  const many = await prepare(rt, dir, 5);
  const one = await prepare(rt, dir, 100);
  assert.deepEqual([many.states.length, one.states.length], [3, 1]);
  for (const [i, stage] of many.stages.entries()) {
    const split = await stageStatistics(rt, stage, i, many.stream, undefined);
    const recomputed = await stageStatistics(rt, stage, i, many.lean, many.stream);
    const x = typed((await one.stream.capture(i, 0)).get(stage.feeds[0]!.id)!);
    for (const [id, { h: hessian, drift, tokens }] of split) {
      const k = hessian.shape[0]!;
      assert.equal(tokens, 11);
      assert.equal(drift, undefined);
      const h = typed<Float64Array>(hessian);
      assert.deepEqual(typed(recomputed.get(id)!.h), h);
      assert.ok(
        typed<Float64Array>(recomputed.get(id)!.drift!).every((d) => d === 0),
        'the same activations on both sides: C = H',
      );
      for (const [a, b] of [
        [0, 0],
        [3, 200],
        [k - 1, 17],
      ] as const) {
        let want = 0;
        for (let t = 0; t < 11; t++) want += x[t * k + a]! * x[t * k + b]!;
        // The same f32 inputs summed in f64 in the same order; only the batch bounds differ.
        assert.ok(Math.abs(h[a * k + b]! - want) <= 1e-12 * (1 + Math.abs(want)), `${id} ${a} ${b}`);
      }
    }
    for (const statistics of [split, recomputed]) disposeStatistics(statistics);
    for (const stream of [many.stream, many.lean, one.stream]) await stream.pass(i);
  }
});

test('experts: rows add up to tokens times k, and a filter leaves the others out', {
  skip: skipWithout('archs', 'qwen3_moe'),
}, async () => {
  const rt = new ReferenceRuntime();
  const { stages, stream } = await prepare(rt, path.join(SHARED, 'archs', 'qwen3_moe'), 6);
  for (const i of [0, 1]) await stream.pass(i);
  const all = await stageStatistics(rt, stages[2]!, 2, stream, stream);
  assert.equal(all.size, 8);
  assert.equal(
    [...all.values()].reduce((sum, { tokens }) => sum + tokens, 0),
    11 * 2,
  );
  const some = await stageStatistics(rt, stages[2]!, 2, stream, undefined, new Set(['experts.3.gate_up']));
  assert.deepEqual([...some.keys()], ['experts.3.gate_up']);
  assert.deepEqual(typed(some.get('experts.3.gate_up')!.h), typed(all.get('experts.3.gate_up')!.h));
});

test('an input with NaN is blamed on its linears', async () => {
  const rt = createRuntime(1);
  assert.ok(addon().operations().includes('gram_accumulate'));
  const { stages, weights, states } = await prepare(
    new ReferenceRuntime(),
    path.join(shareDirectory(), 'tiny-llama'),
    100,
  );
  const stream = new ActivationStream(rt, states);
  stream.enter(stages, weights);
  typed(states[0]!.h)[300] = Number.NaN;
  await assert.rejects(
    stageStatistics(rt, stages[0]!, 0, stream, undefined),
    (error) =>
      error instanceof LpqError &&
      error.code === 'LPQ_MODULE_NUMERICS' &&
      /layers\.0\.self_attn\.q_proj, .*k_proj, .*v_proj/.test(error.message),
  );
});
