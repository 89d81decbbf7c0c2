import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { openSource } from '../../../formats/canonical/source.js';
import { createRuntime, typed } from '../../../native/binding.js';
import type { Calibration } from '../../../src/calibrate/text.js';
import { batchSequences } from '../../../src/model/batch.js';
import { loadOuter, runBlock, runForward } from '../../../src/model/forward.js';
import { openModel } from '../../../src/model/graph.js';
import type { WeightSource } from '../../../src/model/source.js';
import type { BlockTask } from '../../../src/quantize/block-task.js';
import type { Quantizer } from '../../../src/quantize/quantizer.js';
import { nearest, roundWeight } from '../../../src/quantize/round.js';
import { type QuantizeRequest, quantizeCheckpoint } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { rtnQuantizer } from '../../../src/rtn/quantizer.js';
import { scratch } from '../../formats/scratch.js';
import { ARCHITECTURES, plainSource } from '../model/fixtures.js';

const rt = createRuntime(1);
const MODEL = path.join(ARCHITECTURES, 'llama');
const sequences = Array.from({ length: 6 }, (_, s) =>
  Int32Array.from({ length: 30 + s }, (_, i) => (i * i * 7 + s * 41) % 64),
);
const calibration: Calibration = {
  ...{ name: 'made', sha256: '0'.repeat(64), seed: 0, length: 40, kind: 'windows', sequences, available: 6 },
  tokens: sequences.reduce((sum, { length }) => sum + length, 0),
};

/** What a method saw of a block: h of every batch, and the targets. */
interface Seen {
  readonly inputs: Float32Array[];
  readonly outputs: Float32Array[];
  /** The unquantized block of the inputs, and of nothing else. */
  readonly again: Float32Array[];
  readonly task: BlockTask;
}

/** Rounds, and notes what it is given. */
function noting(original: boolean, seen: Seen[]): Quantizer {
  return {
    ...rtnQuantizer(),
    method: 'noting',
    statistics: true,
    original,
    feed: nearest,
    async solveBlock(task) {
      const note: Seen = { inputs: [], outputs: [], again: [], task };
      seen.push(note);
      for (const { rt: on, inputs, outputs, weights } of task.lanes)
        for (let batch = inputs.count - 1; batch >= 0; batch--) {
          const states = [
            inputs.state(batch),
            outputs.state(batch),
            await runBlock(on, task.block, weights, inputs.state(batch)),
          ];
          await on.sync();
          const [input, output, again] = states.map(({ h }) => typed<Float32Array>(h).slice()) as [
            Float32Array,
            Float32Array,
            Float32Array,
          ];
          note.inputs.unshift(input);
          note.outputs.unshift(output);
          note.again.unshift(again);
          for (const { h } of states) h.dispose();
        }
      const { weights, rt: home } = task.lanes[0]!;
      const made = [...task.schemes].map(
        async ([name, scheme]) =>
          [name, await roundWeight(home, weights.get(`${name}.weight`)!, scheme, name)] as const,
      );
      return new Map(await Promise.all(made));
    },
  };
}

const request = (output: string, quantizer: Quantizer): QuantizeRequest => ({
  source: MODEL,
  output,
  scheme: schemeFromOptions({ bits: 4, groupSize: 32 }),
  rules: [],
  quantizer,
  calibration,
  lmHead: false,
  options: {},
  version: 'test',
});

/** h behind the embedding and behind every block, of all sequences in one batch. */
async function statesOf(source: WeightSource): Promise<Float32Array[]> {
  const graph = openModel(source);
  const outer = await loadOuter(rt, source, graph);
  const batches = batchSequences(rt, sequences, 4096);
  assert.equal(batches.length, 1);
  const states: Float32Array[] = [];
  const [first] = batches;
  const embedded = graph.embed(rt, outer, first!.ids, first!.positions);
  await rt.sync();
  states.push(typed<Float32Array>(embedded).slice());
  await runForward(rt, source, graph, outer, batches, {
    onBlock: (_, [state]) => void states.push(typed<Float32Array>(state!.h).slice()),
  });
  return states;
}

test('a method sees what the quantized model computes up to a block, and what the unquantized one makes', async () => {
  const dir = scratch();
  const plain = await statesOf(plainSource(MODEL));
  for (const original of [false, true]) {
    const seen: Seen[] = [];
    const output = path.join(dir, `${original}`);
    const { modules } = await quantizeCheckpoint([rt], request(output, noting(original, seen)));
    const quantized = await statesOf(openSource(output, rt));
    assert.equal(seen.length, plain.length - 1);
    for (const [b, { inputs, outputs, again, task }] of seen.entries()) {
      assert.equal(task.block.index, b);
      assert.deepEqual(inputs, [quantized[b]], `inputs of block ${b}`);
      assert.deepEqual(outputs, original ? [plain[b + 1]] : again, `outputs of block ${b}`);
      assert.equal(task.plan.attention.kind === 'mla', false);
    }
    assert.ok(modules.every(({ tokens }) => tokens === calibration.tokens));
    assert.notDeepEqual(quantized.at(-1), plain.at(-1));
  }
});

test('two devices have a part of the batches each, and the same checkpoint comes of them', async () => {
  const dir = scratch();
  const seen: Seen[] = [];
  const runs = ['one', 'two'].map((name) => path.join(dir, name)) as [string, string];
  await quantizeCheckpoint([rt], request(runs[0], noting(false, [])));
  await quantizeCheckpoint([rt, createRuntime(1)], request(runs[1], noting(false, seen)));
  for (const { inputs, outputs, again, task } of seen) {
    assert.deepEqual(
      task.lanes.map((lane) => lane.inputs.count),
      [2, 2],
    );
    assert.equal(inputs.length, 4);
    assert.deepEqual(outputs, again);
  }
  const [one, two] = [await statesOf(openSource(runs[0], rt)), await statesOf(openSource(runs[1], rt))];
  assert.deepEqual(one, two);
});

test('a run that stopped within a method of blocks goes on to the same bytes; a module left out is an error', async () => {
  const dir = scratch();
  const seen: Seen[] = [];
  const whole = path.join(dir, 'whole');
  await quantizeCheckpoint([rt], request(whole, noting(false, [])));
  const stopped = path.join(dir, 'stopped');
  const quantizer = noting(false, seen);
  const breaking: Quantizer = {
    ...quantizer,
    solveBlock: async (task) =>
      task.block.index > 0 ? new Map() : ((await quantizer.solveBlock?.(task)) ?? new Map()),
  };
  let kept: { keep: boolean } | undefined;
  await assert.rejects(
    quantizeCheckpoint([rt], request(stopped, breaking), {}, (output) => {
      kept = output;
    }),
    /--method noting left out/,
  );
  assert.equal(kept?.keep, true);
  seen.length = 0;
  await quantizeCheckpoint([rt], { ...request(stopped, quantizer), partial: 'resume' });
  assert.deepEqual(
    seen.map(({ task }) => task.block.index),
    [1],
  );
  assert.deepEqual(await statesOf(openSource(stopped, rt)), await statesOf(openSource(whole, rt)));
});
