import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { createRuntime, typed } from '../../../native/binding.js';
import { LATENTS } from '../../../src/cli/options/kv-cache.js';
import type { WeightSource } from '../../../src/model/source.js';
import type { LatentMaker, LatentsUnderTest } from '../../../src/verify/latent-case.js';
import { verifyLatents } from '../../../src/verify/latents.js';
import { Recorder } from '../../../src/verify/report.js';
import { CONFIGS } from '../model/configs.js';
import { ARCHITECTURES, plainSource, randomSource } from '../model/fixtures.js';

const rt = createRuntime(2);
const checkpoint = plainSource(path.join(ARCHITECTURES, 'deepseek_v3'));

async function failuresOf(
  source: WeightSource,
  bits: 2 | 4 | 8,
  group: number,
  maker: LatentMaker = LATENTS,
): Promise<{ count: number; failures: (string | undefined)[]; detail: string | undefined }> {
  const recorder = new Recorder();
  await verifyLatents({ runtime: rt, devices: [rt], recorder, maker, seed: 5 }, { bits, group }, source);
  const { count, detail } = recorder.checks().find(({ name }) => name === 'kv') as { count: number; detail?: string };
  return { count, failures: recorder.failures.map(({ message }) => message), detail };
}

for (const [name, source, bits, group] of [
  ['deepseek_v3, latents of 32 dims', checkpoint, 4, 32],
  ['kimi_linear, beside states', plainSource(path.join(ARCHITECTURES, 'kimi_linear')), 2, 32],
  ['latents of 24 dims and rotary keys of 8', randomSource(CONFIGS.deepseek_v2!), 8, 32],
  ['latents of 512 dims', randomSource({ ...CONFIGS.deepseek_v3!, kv_lora_rank: 512, qk_rope_head_dim: 64 }), 4, 128],
  ['latents of 448 dims', randomSource({ ...CONFIGS.deepseek_v3!, kv_lora_rank: 448, qk_rope_head_dim: 32 }), 2, 64],
] as const)
  test(`the verifier agrees with the CPU's operations: ${name}, ${bits} bits`, async () => {
    const { count, failures, detail } = await failuresOf(source, bits, group);
    assert.deepEqual(failures, []);
    assert.ok(count > 500);
    assert.equal(detail, `latents of ${bits} bits in groups of ${group} dims`);
  });

/** A maker whose cache goes wrong. */
const wrong = (change: (cache: LatentsUnderTest) => Partial<LatentsUnderTest>): LatentMaker => ({
  make: (...of) => {
    const cache = LATENTS.make(...of);
    return { ...cache, ...change(cache) };
  },
});
const afterPacking = (damage: (bytes: Uint8Array) => void) =>
  wrong((cache) => ({
    pack: (c, rotary, table) => {
      cache.pack(c, rotary, table);
      // The CPU's operations: done once the queue is.
      void rt.sync().then(() => damage(typed<Uint8Array>(cache.pages)));
    },
  }));

test('and finds what a cache could do wrong', async () => {
  // A page of 32 dims held as 64, 64 tokens, 4 bits: codes, 2 groups a token, rotary keys of 16.
  const [numbers, rotary] = [64 * 32, 64 * 40];
  for (const [name, maker, message] of [
    ['a code', afterPacking((bytes) => (bytes[0]! ^= 1)), /element 0 of the codes of token 0/],
    ['a scale', afterPacking((bytes) => (bytes[numbers]! ^= 1)), /element 0 of the scales of token 0/],
    ['a zero', afterPacking((bytes) => (bytes[numbers + 2]! ^= 1)), /element 0 of the zeros of token 0/],
    ['a rotary key', afterPacking((bytes) => (bytes[rotary]! ^= 1)), /element 0 of the rotary key of token 0/],
    ['a byte behind the tokens', afterPacking((bytes) => (bytes[32 * 63]! ^= 1)), /of the codes of token 63/],
    [
      'rotary keys left out of scores',
      wrong((cache) => ({
        pack: (c, keys, table) => {
          keys.bytes().fill(0);
          cache.pack(c, keys, table);
        },
      })),
      /rotary key of token/,
    ],
    [
      'other scores',
      wrong((cache) => ({ attend: (q, y, places, p) => cache.attend(q, y, places, { ...p, scale: p.scale * 1.01 }) })),
      /of attention over \d+ tokens \(f32\) is/,
    ],
    [
      'lengths that stay',
      wrong((cache) => ({
        append: (c, keys, places) => {
          cache.append(c, keys, places);
          void rt.sync().then(() => typed<Int32Array>(places.lengths).fill(0));
        },
      })),
      /appended tokens/,
    ],
  ] as const) {
    const { failures } = await failuresOf(checkpoint, 4, 32, maker);
    assert.ok(
      failures.some((each) => message.test(each ?? '')),
      `${name}: ${failures.slice(0, 3).join('\n')}`,
    );
  }
});

test('a cache of latents for a model without latent attention is told', async () => {
  const { failures } = await failuresOf(randomSource(CONFIGS.llama!), 4, 32);
  assert.deepEqual(failures, ['lpq.json describes a cache of latents, and the model has no latent attention']);
});
