import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { createRuntime, readTyped, typed } from '../../../native/binding.js';
import { replaced } from '../../../src/artifact/replaced.js';
import { logitsOf } from '../../../src/eval/logits.js';
import { type Cache, cacheForm, makeCache } from '../../../src/generate/cache.js';
import { disposeResident, loadResident, type ResidentModel } from '../../../src/generate/resident.js';
import { disposeStep, type Entry, makeStep, runStep } from '../../../src/generate/step.js';
import { latentsOf } from '../../../src/kv/latent.js';
import type { WeightSource } from '../../../src/model/source.js';
import { designed } from '../../formats/scratch.js';
import { CONFIGS } from '../model/configs.js';
import { ARCHITECTURES, PlainFile, plainSource, randomSource } from '../model/fixtures.js';

const rt = createRuntime(2);
const ids = (count: number, seed: number) =>
  Int32Array.from({ length: count }, (_, i) => (i * i * 7 + i * 29 + seed) % 90);
const latents = (bits: 2 | 4 | 8 | 16) => ({ bits, group: 32 });

async function logits(model: ResidentModel, cache: Cache, entries: readonly Entry[]): Promise<Float32Array> {
  const step = makeStep(rt, entries);
  const tensor = await runStep(rt, model, cache, step);
  const values = await readTyped<Float32Array>(rt, tensor);
  tensor.dispose();
  disposeStep(step);
  return values.slice();
}

async function whole(source: WeightSource, sequence: Int32Array): Promise<Float32Array[]> {
  const tensor = await logitsOf(rt, source, { ids: sequence, shape: [1, sequence.length] });
  const values = await readTyped<Float32Array>(rt, tensor);
  const vocab = values.length / sequence.length;
  return Array.from(sequence, (_, t) => values.slice(t * vocab, (t + 1) * vocab));
}

const most = (values: Float32Array) => values.reduce((all, value) => Math.max(all, Math.abs(value)), 0);
const off = (a: Float32Array, b: Float32Array) => most(a.map((value, i) => value - b[i]!));

/** One block: in further ones a code may flip at a tie. Latents of 24 dims, which a page holds as 64 of which 32 are a group. */
const oneBlock = (name: 'deepseek_v2' | 'deepseek_v3') =>
  randomSource({ ...CONFIGS[name]!, num_hidden_layers: 1, first_k_dense_replace: 1 });

for (const name of ['deepseek_v2', 'deepseek_v3'] as const)
  for (const bits of [16, 8, 4, 2] as const)
    test(`${name}: tokens one by one over latents of ${bits} bits have the logits of an evaluation`, async () => {
      const exact = oneBlock(name);
      // Of 16 bits an evaluation knows none: it reads them as they are.
      const source = bits === 16 ? exact : replaced(exact, { latents: latents(bits) as WeightSource['latents'] });
      const model = await loadResident(rt, exact);
      const sequence = ids(140, 5);
      const shape = { blocks: 1, slots: 1, most: 140 };
      const cache = makeCache(rt, bits === 16 ? { latents: latents(16) } : cacheForm(source), shape);
      const want = await whole(source, sequence);
      for (let t = 0; t < sequence.length; t++) {
        const got = await logits(model, cache, [{ slot: 0, past: t, ids: sequence.subarray(t, t + 1) }]);
        // Here one token is the prompt, and reads itself exactly.
        if (t === 0) continue;
        const row = want[t]!;
        // Queries in the space of the latent are rounded to f16, and with 16 bits latents and rotary keys: scores of up to 30, each a sum
        // of terms rounded to 2^-11 of themselves, are 2^-11 of a few away, and so are weights.
        assert.ok(off(got, row) <= 4e-3 * most(row), `token ${t}: ${off(got, row)} of ${most(row)}`);
      }
      cache.dispose();
      disposeResident(model);
    });

test('a prompt reads itself exactly; sequences do not depend on the others, nor on slots and pages', async () => {
  const source = randomSource(CONFIGS.deepseek_v3!);
  const model = await loadResident(rt, source);
  const sequences = [ids(70, 3), ids(30, 8), ids(65, 1)];
  const form = { latents: latents(4) };
  const shape = { blocks: model.graph.blocks.length, slots: 3, most: 75 };
  const together = makeCache(rt, form, shape);
  const entries = sequences.map((sequence, slot) => ({
    slot,
    past: 0,
    ids: sequence.subarray(0, sequence.length - 3),
  }));
  const { vocab } = model.graph;
  const prompts = await logits(model, together, entries);
  for (const [slot, sequence] of sequences.entries()) {
    const exact = (await whole(source, sequence.slice(0, sequence.length - 3))).at(-1)!;
    assert.deepEqual(prompts.slice(slot * vocab, (slot + 1) * vocab), exact);
  }
  const alone = makeCache(rt, form, { ...shape, slots: 1 });
  const second = sequences[1] as Int32Array;
  await logits(model, alone, [{ slot: 0, past: 0, ids: second.subarray(0, 27) }]);
  for (let i = 3; i > 0; i--) {
    // The first ends early, and the order changes.
    const open = i === 3 ? [0, 1, 2] : [2, 1];
    const step = open.map((slot) => {
      const sequence = sequences[slot] as Int32Array;
      const past = sequence.length - i;
      return { slot, past, ids: sequence.subarray(past, past + 1) };
    });
    const got = await logits(model, together, step);
    const own = await logits(model, alone, [{ slot: 0, past: 30 - i, ids: second.subarray(30 - i, 31 - i) }]);
    assert.deepEqual(got.slice(vocab, 2 * vocab), own);
  }
  // Pages of 64 tokens: 2 a slot, codes of 64 dims, two groups of 32, rotary keys of 16.
  assert.equal(together.bytes, shape.blocks * 3 * 2 * 64 * (32 + 8 + 32));
  assert.equal(together.form, 'latents of 4 bits in groups of 32');
  for (const cache of [together, alone]) cache.dispose();
  disposeResident(model);
});

for (const name of ['deepseek_v3', 'glm4_moe_lite', 'kimi_linear', 'longcat_flash', 'kimi_k25'])
  test(`${name}: steps over latents of 16 bits give transformers' logits, and fewer bits show`, async () => {
    const dir = path.join(ARCHITECTURES, name);
    const golden = new PlainFile(path.join(dir, 'golden.safetensors'));
    const sequence = typed<Int32Array>(golden.tensor('input_ids')).slice(0, 12);
    const want = typed<Float32Array>(golden.tensor('logits'));
    const model = await loadResident(rt, plainSource(dir));
    const { vocab } = model.graph;
    const worst = async (bits: 2 | 4 | 8 | 16): Promise<number> => {
      const shape = { blocks: model.graph.blocks.length, slots: 1, most: 12 };
      const cache = makeCache(rt, { latents: latents(bits) }, shape);
      let worst = 0;
      await logits(model, cache, [{ slot: 0, past: 0, ids: sequence.subarray(0, 5) }]);
      for (let t = 5; t < 12; t++) {
        const got = await logits(model, cache, [{ slot: 0, past: t, ids: sequence.subarray(t, t + 1) }]);
        worst = Math.max(worst, off(got, want.slice(t * vocab, (t + 1) * vocab)));
      }
      cache.dispose();
      return worst;
    };
    const size = most(want);
    const [half, eight, four, two] = [await worst(16), await worst(8), await worst(4), await worst(2)];
    // Latents, rotary keys and queries rounded to f16: 2^-11 of each term.
    assert.ok(half <= 2e-3 * size, `${half} of ${size}`);
    assert.ok(half < eight && eight < four && four < two, `${half}, ${eight}, ${four}, ${two}`);
    disposeResident(model);
  });

test('what a cache of latents does not keep is refused', async () => {
  const step = async (config: object) => {
    const model = await loadResident(rt, randomSource(config as Record<string, unknown>));
    const cache = makeCache(rt, { latents: latents(4) }, { blocks: model.graph.blocks.length, slots: 1, most: 20 });
    await logits(model, cache, [{ slot: 0, past: 0, ids: ids(5, 1) }]);
  };
  await assert.rejects(
    step({ ...CONFIGS.deepseek_v3!, kv_lora_rank: 576 }),
    designed('LPQ_USAGE', /kv_b_proj.*576 dims/),
  );
  await assert.rejects(
    step({ ...CONFIGS.deepseek_v3!, qk_rope_head_dim: 80 }),
    designed('LPQ_USAGE', /rotary keys of 80/),
  );
  await assert.rejects(step(CONFIGS.llama!), designed('LPQ_USAGE', /block 0 has keys and values/));
});

test('a source with another cache reads its inputs as before', () => {
  const form = { rounded: { type: 'i8' as never } };
  const source = { ...randomSource(CONFIGS.llama!), reads: (name: string) => (name === 'a.weight' ? form : undefined) };
  const with4 = replaced(source, { latents: latents(4) as WeightSource['latents'] });
  assert.deepEqual([with4.reads?.('a.weight'), with4.reads?.('b.weight')], [form, undefined]);
});

test('groups of latents of any size', () => {
  assert.deepEqual(latentsOf({ kv: '4' }, 24), { bits: 4, group: 32 });
  assert.deepEqual(latentsOf({ kv: '4' }, 448), { bits: 4, group: 64 });
  assert.throws(() => latentsOf({ kv: '4', fit: true }, 512), designed('LPQ_USAGE', /--kv-fit/));
});
