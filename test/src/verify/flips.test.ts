import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { expectedSeal } from '../../../formats/artifact/seal.js';
import { createRuntime } from '../../../native/binding.js';
import { ALL, sampled } from '../../sample.js';
import { build } from './build.js';
import { CHANNEL, group, type ModuleSpec, NONE, random } from './numbers.js';
import { isCaught, type Recompute, Tampered } from './tamper.js';

const runtime = createRuntime(1);
const u8 = { kind: 'int', dtype: 'u8' } as const;
const i16 = { kind: 'int', dtype: 'i16' } as const;

// One bit of 3 or 5, which walk through all eight bits of bytes: which ones, the commit draws; all of them with LPQ_TEST_ALL=1.
const bits = (name: string, begin: number, end: number, period: number) =>
  sampled(
    name,
    Array.from({ length: end - begin }, (_, i) => begin + i),
    period,
  );

const TINY: readonly [string, Readonly<Record<string, ModuleSpec>>][] = [
  ['gptq_v2', { m: { type: 'u4', n: 5, k: 8, granularity: group(4), zeros: u8, layout: 'gptq_v2', actOrder: true } }],
  ['gptq', { m: { type: 'i3', n: 3, k: 6, granularity: group(3), zeros: NONE, layout: 'gptq' } }],
  [
    'compressed-tensors',
    {
      a: { type: 'i5', n: 3, k: 7, granularity: CHANNEL, zeros: i16, layout: 'compressed-tensors', scaleDtype: 'bf16' },
      lm_head: { type: 'u3', n: 2, k: 3, granularity: CHANNEL, zeros: u8, layout: 'dense' },
    },
  ],
  ['tilus', { b: { type: 'f6e3m2', n: 3, k: 5, granularity: CHANNEL, zeros: NONE, layout: 'carried' } }],
];

for (const [target, modules] of sampled('flips of tiny artifacts', TINY, 4))
  test(`${target}: every bit of every tensor counts, whatever hashes follow it`, async () => {
    const built = await build(target, modules);
    const shard = new Tampered(built.artifact, 'model.safetensors');
    const escaped: string[] = [];
    try {
      assert.equal(await isCaught(built.artifact, built.quantized, runtime), false);
      const runs: [Recompute, string | undefined][] = [
        ['none', undefined],
        ['artifact', undefined],
        ['all', built.quantized],
      ];
      for (const [recompute, against] of runs)
        for (const { name, begin, end } of shard.tensors())
          for (const bit of bits(`${target} ${name} ${recompute}`, begin, end, recompute === 'all' ? 3 : 5))
            await shard.flipped(bit, recompute, async () => {
              if (!(await isCaught(built.artifact, against, runtime)))
                escaped.push(`${name}:${bit - begin} ${recompute}`);
            });
      assert.deepEqual(escaped, []);
      assert.equal(await isCaught(built.artifact, built.quantized, runtime), false);
    } finally {
      built.remove();
    }
  });

test('the bits of the shard’s header, of config.json and of the other files count', async () => {
  const built = await build(...TINY[0]!);
  const escaped: string[] = [];
  try {
    const shard = new Tampered(built.artifact, 'model.safetensors');
    for (const bit of bits('header', 0, shard.tensors()[0]!.begin, 5))
      await shard.flipped(bit, 'none', async () => {
        if (!(await isCaught(built.artifact, undefined, runtime))) escaped.push(`header ${bit}`);
      });
    for (const file of ['config.json', 'quantize_config.json', 'tokenizer.json']) {
      const tampered = new Tampered(built.artifact, file);
      for (const bit of bits(file, 0, tampered.bits, 5))
        await tampered.flipped(bit, 'all', async () => {
          if (!(await isCaught(built.artifact, built.quantized, runtime))) escaped.push(`${file} ${bit}`);
        });
    }
    assert.deepEqual(escaped, []);
  } finally {
    built.remove();
  }
});

test('every bit of lpq.json counts', async () => {
  const built = await build(...TINY[1]!);
  try {
    const file = path.join(built.artifact, 'lpq.json');
    const text = readFileSync(file);
    const seal = expectedSeal(text.toString('utf8'));
    assert.equal(JSON.parse(text.toString('utf8')).seal, seal);
    const next = random(5);
    for (let bit = 0; bit < text.length * 8; bit++) {
      const bytes = Buffer.from(text);
      bytes[bit >> 3]! ^= 1 << (bit & 7);
      // A flip in the seal leaves what it should be; any other leaves what it is. Either way the two part.
      const changed = bytes.toString('utf8');
      const stated = /"seal"\s*:\s*"([0-9a-f]{64})"/.exec(changed)?.[1];
      assert.ok(stated === undefined || stated !== expectedSeal(changed), `bit ${bit}`);
      if (next() % (ALL ? 2 : 16) !== 0) continue;
      writeFileSync(file, bytes);
      assert.ok(await isCaught(built.artifact, undefined, runtime), `bit ${bit}`);
    }
  } finally {
    built.remove();
  }
});

test('marlin: flips of words, scales and padding, sampled, with all hashes made to fit', async () => {
  const built = await build('marlin', {
    m: { type: 'i4', n: 30, k: 100, granularity: CHANNEL, zeros: NONE, layout: 'marlin' },
  });
  try {
    const shard = new Tampered(built.artifact, 'model.safetensors');
    const next = random(11);
    for (const { name, begin, end } of shard.tensors())
      for (let i = 0; i < 100; i++) {
        const bit = begin + (next() % (end - begin));
        for (const [recompute, against] of [
          ['artifact', undefined],
          ['all', built.quantized],
        ] as const)
          await shard.flipped(bit, recompute, async () => {
            assert.ok(await isCaught(built.artifact, against, runtime), `${name}:${bit - begin} ${recompute}`);
          });
      }
  } finally {
    built.remove();
  }
});
