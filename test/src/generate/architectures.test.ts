import assert from 'node:assert/strict';
import path from 'node:path';
import test from 'node:test';
import { createRuntime, readTyped, typed } from '../../../native/binding.js';
import { makeCache } from '../../../src/generate/cache.js';
import { disposeResident, loadResident } from '../../../src/generate/resident.js';
import { disposeStep, makeStep, runStep } from '../../../src/generate/step.js';
import { ARCHITECTURES, PlainFile, plainSource } from '../model/fixtures.js';

/** Token by token over kept keys and values: transformers' logits of the whole sequence, where norms, positions or heads are unusual. */

const PROMPT = 6;

for (const name of [
  'apertus',
  'exaone4',
  'gemma4',
  'gemma4_moe',
  'gemma4_text',
  'gemma3n_text',
  'hunyuan_v1_dense',
  'mimo_v2_flash',
  'ministral3',
  'smollm3',
  'stablelm',
])
  test(`${name}: steps over a cache give transformers' logits`, async () => {
    const rt = createRuntime(2);
    const dir = path.join(ARCHITECTURES, name);
    const golden = new PlainFile(path.join(dir, 'golden.safetensors'));
    const ids = typed<Int32Array>(golden.tensor('input_ids')).slice(0, 12);
    const want = typed<Float32Array>(golden.tensor('logits'));
    const model = await loadResident(rt, plainSource(dir));
    const cache = makeCache(rt, 'exact', { blocks: model.graph.blocks.length, slots: 1, most: ids.length });
    for (let end = PROMPT; end <= ids.length; end++) {
      const past = end === PROMPT ? 0 : end - 1;
      const step = makeStep(rt, [{ slot: 0, past, ids: ids.subarray(past, end) }]);
      const tensor = await runStep(rt, model, cache, step);
      const got = await readTyped<Float32Array>(rt, tensor);
      const { vocab } = model.graph;
      const worst = got.reduce((most, value, i) => Math.max(most, Math.abs(value - want[(end - 1) * vocab + i]!)), 0);
      // The bound of golden.test.ts: the same sums, over keys and values that were computed once.
      assert.ok(worst <= 1e-4, `the token at ${end - 1} differs by ${worst}`);
      tensor.dispose();
      disposeStep(step);
    }
    cache.dispose();
    disposeResident(model);
  });
