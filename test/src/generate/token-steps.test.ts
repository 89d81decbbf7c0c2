import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime, type Recording, readTyped } from '../../../native/binding.js';
import { makeCache } from '../../../src/generate/cache.js';
import { disposeResident, loadResident } from '../../../src/generate/resident.js';
import { disposeStep, type Entry, makeStep, runStep } from '../../../src/generate/step.js';
import { TokenSteps } from '../../../src/generate/token-steps.js';
import { CONFIGS } from '../model/configs.js';
import { randomSource } from '../model/fixtures.js';

const rt = createRuntime(2);
let replays = 0;
const replay = rt.replay.bind(rt);
Object.defineProperty(rt, 'replay', {
  value: (recording: Recording) => {
    replays++;
    replay(recording);
  },
});

/** Tokens of two sequences one by one, past the first rows of the cache; the second ends before the first. */
function* steps(): Generator<Entry[]> {
  const entry = (slot: number, past: number): Entry => ({ slot, past, ids: Int32Array.of((past * 7 + slot * 3) % 90) });
  for (let t = 0; t < 6; t++) yield [entry(0, t), entry(1, t)];
  for (let t = 6; t < 68; t++) yield [entry(1, t)];
}

for (const [name, config] of Object.entries(CONFIGS))
  test(`${name}: repeated steps give the logits of steps`, async () => {
    const model = await loadResident(rt, randomSource(config));
    const shape = { blocks: model.graph.blocks.length, slots: 2, most: 80 };
    const [plain, repeated] = [makeCache(rt, 'exact', shape), makeCache(rt, 'exact', shape)];
    const tokens = new TokenSteps(rt, model, repeated);
    replays = 0;
    let count = 0;
    for (const entries of steps()) {
      count++;
      const step = makeStep(rt, entries);
      const logits = await runStep(rt, model, plain, step);
      const want = Float32Array.from(await readTyped(rt, logits));
      logits.dispose();
      disposeStep(step);
      assert.deepEqual(Float32Array.from(await tokens.logits(entries)), want, `step ${count}`);
    }
    // A router is read back in each step; other steps are repeated from the third of one size on.
    if (replays > 0) assert.ok(replays >= 55, `${replays} of ${count}`);
    if (name === 'llama') assert.ok(replays > 0);
    tokens.dispose();
    for (const cache of [plain, repeated]) cache.dispose();
    disposeResident(model);
  });

test('steps over a cache of few bits, which packs tokens in JavaScript, are not repeated', async () => {
  const model = await loadResident(rt, randomSource({ ...CONFIGS.qwen3!, num_hidden_layers: 1 }));
  const form = {
    ...{ form: 'bitdecoding', keys: { bits: 4, granularity: 'channel', group: 128 }, residual: 128 },
    values: { bits: 4, group: 32 },
  };
  const cache = makeCache(rt, form as never, { blocks: 1, slots: 1, most: 20 });
  assert.equal(cache.room, 0);
  const tokens = new TokenSteps(rt, model, cache);
  replays = 0;
  for (let past = 0; past < 6; past++) await tokens.logits([{ slot: 0, past, ids: Int32Array.of(past) }]);
  assert.equal(replays, 0);
  tokens.dispose();
});
