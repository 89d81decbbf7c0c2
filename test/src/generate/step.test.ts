import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime, readTyped } from '../../../native/binding.js';
import { logitsOf } from '../../../src/eval/logits.js';
import { type Cache, makeCache } from '../../../src/generate/cache.js';
import { disposeResident, loadResident, type ResidentModel } from '../../../src/generate/resident.js';
import { disposeStep, type Entry, makeStep, runStep } from '../../../src/generate/step.js';
import type { WeightSource } from '../../../src/model/source.js';
import { designed } from '../../formats/scratch.js';
import { CONFIGS } from '../model/configs.js';
import { randomSource } from '../model/fixtures.js';

const rt = createRuntime(2);
const ids = (count: number, seed: number) =>
  Int32Array.from({ length: count }, (_, i) => (i * i * 7 + i * 29 + seed) % 90);

async function logits(model: ResidentModel, cache: Cache, entries: readonly Entry[], all = false) {
  const step = makeStep(rt, entries);
  const tensor = await runStep(rt, model, cache, step, all);
  const values = await readTyped(rt, tensor);
  tensor.dispose();
  disposeStep(step);
  return values;
}

/** Logits of every token of a sequence that is computed at once. */
async function whole(source: WeightSource, sequence: Int32Array): Promise<Float32Array[]> {
  const tensor = await logitsOf(rt, source, { ids: sequence, shape: [1, sequence.length] });
  const values = await readTyped(rt, tensor);
  tensor.dispose();
  const vocab = values.length / sequence.length;
  return Array.from(sequence, (_, t) => values.subarray(t * vocab, (t + 1) * vocab));
}

for (const [name, config] of Object.entries(CONFIGS))
  test(`${name}: tokens one by one have the logits of the whole sequence, bit by bit`, async () => {
    const source = randomSource(config);
    // Linears of one input joined, as on devices, which changes no bit.
    const model = await loadResident(rt, source, undefined, true);
    const sequences = [ids(140, 3), ids(70, 11)] as const;
    const want = await Promise.all(sequences.map((sequence) => whole(source, sequence)));
    const cache = makeCache(rt, 'exact', { blocks: model.graph.blocks.length, slots: 2, most: 140 });
    const { vocab } = model.graph;
    const compare = (got: Float32Array, entries: readonly Entry[]) => {
      for (const [i, { slot, past, ids: part }] of entries.entries())
        assert.deepEqual(
          got.slice(i * vocab, (i + 1) * vocab),
          want[slot]![past + part.length - 1]!.slice(),
          `slot ${slot}, token ${past + part.length - 1}`,
        );
    };
    const run = async (...parts: (readonly [slot: 0 | 1, past: number, end: number])[]) => {
      const entries = parts.map(([slot, past, end]) => ({ slot, past, ids: sequences[slot].subarray(past, end) }));
      compare(await logits(model, cache, entries), entries);
    };
    // Prompts together, a piece of one beside a token of the other, past the first 64 rows and the first 128 keys.
    await run([0, 0, 9], [1, 0, 63]);
    await run([0, 9, 10], [1, 63, 64]);
    await run([0, 10, 127], [1, 64, 65]);
    for (let t = 127; t < 131; t++) await run([0, t, t + 1]);
    await run([1, 65, 66], [0, 131, 140]);
    cache.dispose();
    disposeResident(model);
  });

test('all tokens of a step, if they are wanted', async () => {
  const source = randomSource(CONFIGS.llama!);
  const model = await loadResident(rt, source);
  const cache = makeCache(rt, 'exact', { blocks: model.graph.blocks.length, slots: 1, most: 20 });
  const sequence = ids(20, 1);
  const want = await whole(source, sequence);
  const got = await logits(model, cache, [{ slot: 0, past: 0, ids: sequence }], true);
  assert.deepEqual(
    [...got],
    want.flatMap((row) => [...row]),
  );
});

/**
 * Heads of 32 dims. One block, whose keys and values are the same however attention sums: in further ones a code may flip at a tie, and
 * what FMPQ's last run of tokens was when earlier ones were computed goes on in what they keep.
 */
const CONFIG = { ...CONFIGS.qwen3!, num_hidden_layers: 1 };
const kv = (form: object) => ({ ...randomSource(CONFIG), kv: form as WeightSource['kv'] });
const bitdecoding = (bits: 2 | 4 | 8, group: number, residual: number) => ({
  form: 'bitdecoding',
  keys: { bits, granularity: 'channel', group },
  values: { bits, group: 32 },
  residual,
});

for (const [name, form] of Object.entries({
  'KV4, exact tail': bitdecoding(4, 128, 128),
  'KV8, exact tail': bitdecoding(8, 32, 64),
  'TurboMind, every token packed': {
    form: 'turbomind',
    keys: { bits: 8, granularity: 'token', group: 32 },
    values: { bits: 8, group: 32 },
    residual: 0,
  },
  'FMPQ, channels': { bits: 4, group: 8 },
}))
  test(`${name}: a cache of few bits gives what an evaluation with it computes`, async () => {
    const scheme = 'keys' in form;
    const source = kv(form);
    const model = await loadResident(rt, source);
    const sequence = ids(150, 5);
    const cache = makeCache(rt, form as never, { blocks: model.graph.blocks.length, slots: 1, most: 150 });
    // An evaluation lets even the tokens of a prompt read packed ones: here that is one token, and not looked at.
    const want = scheme ? await whole(source, sequence) : undefined;
    for (let t = 0; t < sequence.length; t++) {
      const got = await logits(model, cache, [{ slot: 0, past: t, ids: sequence.subarray(t, t + 1) }]);
      if (t === 0 || (t % 37 !== 0 && t < 126)) continue;
      const row = want?.[t] ?? (await whole(source, sequence.slice(0, t + 1)))[t]!;
      // Sums of attention run in another order, in fp32: at most 150 terms of 2^-24, and as much of the softmax, in sums of 64.
      const most = Math.max(1, ...row.map(Math.abs));
      got.forEach((value, i) => {
        assert.ok(Math.abs(value - row[i]!) <= 3e-5 * most, `token ${t}, logit ${i}: ${value} is not ${row[i]}`);
      });
    }
    cache.dispose();
    disposeResident(model);
  });

test('a prompt is read exactly and packed afterwards, and the next token reads it packed', async () => {
  const form = bitdecoding(4, 128, 128);
  const [source, exact] = [kv(form), randomSource(CONFIG)];
  const model = await loadResident(rt, source);
  const sequence = ids(140, 9);
  const run = async (which: never) => {
    const cache = makeCache(rt, which, { blocks: model.graph.blocks.length, slots: 1, most: 200 });
    const prompt = await logits(model, cache, [{ slot: 0, past: 0, ids: sequence.subarray(0, 139) }]);
    const next = await logits(model, cache, [{ slot: 0, past: 139, ids: sequence.subarray(139) }]);
    return [prompt, next] as const;
  };
  const [packed, half] = [await run(form as never), await run('f16' as never)];
  assert.deepEqual(packed[0], half[0]);
  const off = (a: Float32Array, b: Float32Array) => Math.max(...a.map((value, i) => Math.abs(value - b[i]!)));
  assert.ok(off(packed[1], half[1]) > 1e-3, 'four bits show');
  assert.ok(off((await whole(exact, sequence))[139]!, half[1]) < 0.05);
});

test('attention that a packed cache cannot be read by is refused', async () => {
  const source = {
    ...randomSource({
      ...CONFIGS.llama!,
      sliding_window: 16,
      model_type: 'mistral',
      architectures: ['MistralForCausalLM'],
    }),
  };
  const model = await loadResident(rt, source);
  const cache = makeCache(rt, bitdecoding(4, 128, 128) as never, { blocks: 4, slots: 1, most: 32 });
  await assert.rejects(
    logits(model, cache, [{ slot: 0, past: 0, ids: ids(3, 0) }]),
    designed('LPQ_USAGE', /block 0 has attention that cannot read a packed cache/),
  );
});
