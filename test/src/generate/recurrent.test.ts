import assert from 'node:assert/strict';
import path from 'node:path';
import test from 'node:test';
import { createRuntime, readTyped, typed } from '../../../native/binding.js';
import { makeCache } from '../../../src/generate/cache.js';
import { disposeResident, loadResident } from '../../../src/generate/resident.js';
import { disposeStep, type Entry, makeStep, runStep } from '../../../src/generate/step.js';
import { planSource } from '../../../src/model/graph.js';
import { ARCHITECTURES, GOLDENS, PlainFile, plainSource } from '../model/fixtures.js';

/** Models with recurrent blocks, indexers or compressed entries, prefix by prefix over all that is kept: transformers' logits of the whole sequences. */

const RECURRENT = GOLDENS.filter((name) =>
  planSource(plainSource(path.join(ARCHITECTURES, name))).blocks.some(
    ({ attention, beside }) =>
      ['recurrent', 'compressed'].includes(attention.kind) || beside !== undefined || 'indexer' in attention,
  ),
);

test('there are architectures with recurrent blocks', () => assert.ok(RECURRENT.length >= 2));

for (const name of RECURRENT)
  test(`${name}: two prompts in pieces give transformers' logits, in slots that others have used`, async () => {
    const rt = createRuntime(2);
    const dir = path.join(ARCHITECTURES, name);
    const golden = new PlainFile(path.join(dir, 'golden.safetensors'));
    const [flat, want] = [typed<Int32Array>(golden.tensor('input_ids')), typed<Float32Array>(golden.tensor('logits'))];
    const length = flat.length / 2;
    const model = await loadResident(rt, plainSource(dir));
    const { vocab } = model.graph;
    const cache = makeCache(rt, 'exact', { blocks: model.graph.blocks.length, slots: 2, most: length });
    const step = async (pieces: readonly (readonly [row: number, from: number, to: number])[]) => {
      const entries = pieces.map(([row, past, to]): Entry => {
        return { slot: 1 - row, past, ids: flat.slice(row * length + past, row * length + to) };
      });
      const made = makeStep(rt, entries);
      const tensor = await runStep(rt, model, cache, made, true);
      const got = await readTyped<Float32Array>(rt, tensor);
      let at = 0;
      for (const [row, past, to] of pieces)
        for (let t = past; t < to; t++, at++)
          for (let c = 0; c < vocab; c++) {
            const error = Math.abs(got[at * vocab + c]! - want[(row * length + t) * vocab + c]!);
            // The bound of golden.test.ts: the same sums, over a state that was kept.
            assert.ok(error <= 1e-4, `token ${t} of row ${row} differs by ${error}`);
          }
      tensor.dispose();
      disposeStep(made);
    };
    for (let round = 0; round < 2; round++) {
      await step([[0, 0, 2]]);
      await step([
        [1, 0, 5],
        [0, 2, 3],
      ]);
      await step([
        [0, 3, 4],
        [1, 5, length],
      ]);
      for (let t = 4; t < length; t++) await step([[0, t, t + 1]]);
    }
    cache.dispose();
    disposeResident(model);
  });
