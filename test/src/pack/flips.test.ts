import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { createRuntime } from '../../../native/binding.js';
import { QUANT_TYPES } from '../../../src/core/quant-type.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { scratch } from '../../formats/scratch.js';
import { sampled } from '../../sample.js';
import { random } from '../verify/numbers.js';
import { isCaught, Tampered } from '../verify/tamper.js';
import { checkpointOf, type Made, made } from './checkpoint.js';

// For every layout and type: a flipped bit of a packed tensor is found, although the hashes of packed tensors and files,
// and the seal, were made to fit; and with --against, although every hash was.

const runtime = createRuntime(1);
const uint8 = { kind: 'int', dtype: 'u8' } as const;
const int16 = { kind: 'int', dtype: 'i16' } as const;
const f16 = { kind: 'float', dtype: 'f16' } as const;

async function flips(target: string, modules: Record<string, Made>, each: number, ranks = 1): Promise<void> {
  const dir = scratch();
  const input = await checkpointOf(dir, 'canonical', modules);
  const artifact = path.join(dir, 'packed');
  await packCheckpoint({ input, target, ranks, output: artifact, runtime });
  input.close();
  assert.equal(await isCaught(artifact, input.dir, runtime), false);
  const shard = new Tampered(artifact, 'model.safetensors');
  const next = random(17);
  const escaped: string[] = [];
  const carried = /^model\./;
  for (const { name, begin, end } of shard.tensors())
    if (!carried.test(name))
      for (let i = 0; i < each; i++) {
        const bit = begin + (next() % (end - begin));
        await shard.flipped(bit, i % 2 ? 'artifact' : 'all', async () => {
          if (!(await isCaught(artifact, i % 2 ? undefined : input.dir, runtime)))
            escaped.push(`${name}:${bit - begin}`);
        });
      }
  assert.deepEqual(escaped, []);
}

test('tilus, every type: padding included', async () => {
  for (const [seed, { name }] of sampled('flips of types', [...QUANT_TYPES.entries()], 6))
    await flips('tilus', { m: made({ type: name, n: 20, k: 96, group: 32, seed }) }, 8);
});

test('tilus: zero points, permutations and power-of-two scales', async () => {
  await flips('tilus', { m: made({ type: 'u3', n: 20, k: 96, group: 32, zeros: uint8 }) }, 24);
  const whole = made({ type: 'i4', n: 20, k: 96, group: 32, zeros: int16, zeroRange: [-300, 300] });
  await flips('tilus', { m: whole }, 24);
  const plain = made({ type: 'u2', n: 20, k: 64, group: 32, zeros: f16, seed: 3 });
  await flips('tilus', { m: { ...plain, data: { ...plain.data, zeros: plain.scales } } }, 24);
  const power = made({ type: 'f4e2m1', n: 20, k: 64, group: 32, scaleDtype: 'f8_e8m0' });
  const scales = (power.data.scales as Uint8Array).map((e) => e % 255);
  await flips('tilus', { m: { ...power, data: { ...power.data, scales } } }, 24);
  await flips('tilus', { m: made({ type: 'i5', n: 20, k: 128, group: 32, extras: ['g_idx'] }) }, 24);
  await flips('tilus', { m: made({ type: 'i5', n: 20, k: 128, group: 32, extras: ['permutation'] }) }, 24);
});

test('marlin: both widths, zero points, act-order', async () => {
  const shape = { n: 20, k: 96, group: 32 } as const;
  for (const type of ['i4', 'i8']) await flips('marlin', { m: made({ type, ...shape }) }, 24);
  for (const type of ['u4', 'u8']) await flips('marlin', { m: made({ type, ...shape, zeros: uint8 }) }, 24);
  await flips('marlin', { m: made({ type: 'i4', n: 20, k: 128, group: 32, extras: ['g_idx'] }) }, 24);
});

for (const target of ['turbomind', 'turbomind_sm70'])
  test(`${target}: every type it has`, async () => {
    const shape = { n: 20, k: 64, group: 32 } as const;
    for (const type of ['u4', 'u8']) await flips(target, { m: made({ type, ...shape, zeros: uint8 }) }, 24);
    for (const type of ['i4', 'i8']) await flips(target, { 'x.experts.0.w': made({ type, ...shape }) }, 24);
    const power = made({ type: 'f4e2m1', ...shape, scaleDtype: 'f8_e8m0' });
    const scales = (power.data.scales as Uint8Array).map((e) => e % 255);
    await flips(target, { m: { ...power, data: { ...power.data, scales } } }, 24);
    await flips(target, { m: made({ type: 'f8e4m3', ...shape, scaleDtype: 'bf16' }) }, 24);
  });

test('parts of ranks', async () => {
  const modules = {
    'l.q_proj': made({ type: 'i4', n: 64, k: 64, group: 32 }),
    'l.o_proj': made({ type: 'u4', n: 64, k: 64, group: 32, zeros: uint8, seed: 2 }),
    'l.down_proj': made({ type: 'i8', n: 64, k: 128, seed: 3 }),
  };
  await flips('tilus', modules, 12, 2);
  await flips('marlin', { 'l.o_proj': modules['l.o_proj'], 'l.down_proj': modules['l.down_proj'] }, 12, 2);
});
