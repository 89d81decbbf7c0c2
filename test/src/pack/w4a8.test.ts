import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { Artifact } from '../../../formats/artifact/read.js';
import type { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { declarationProblem } from '../../../formats/canonical/tensors.js';
import { createRuntime, typed } from '../../../native/binding.js';
import { artifactSource } from '../../../src/artifact/open.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { designed, scratch } from '../../formats/scratch.js';
import { random } from '../verify/numbers.js';
import { isCaught, Tampered } from '../verify/tamper.js';
import { checkpointOf, type Made, made, twoLevels } from './checkpoint.js';

const runtime = createRuntime(2);

type TwoLevel = Made & ReturnType<typeof twoLevels>;

function module(n: number, groups: number, { seed = 1, wide = false } = {}): TwoLevel {
  const options = { type: 'i4', n, k: 128 * groups, group: 128, seed, twoLevel: true } as const;
  return { ...made({ ...options, ...(wide && { scaleDtype: 'f32' }) }), ...twoLevels(n, groups, seed) };
}

async function packed(modules: Record<string, Made>, ranks = 1): Promise<[Artifact, CanonicalCheckpoint]> {
  const dir = scratch();
  const input = await checkpointOf(dir, 'canonical', modules);
  const output = path.join(dir, 'packed');
  await packCheckpoint({ input, target: 'w4a8', ranks, output, runtime });
  return [Artifact.open(output), input];
}

test('codes, multiples and scales of rows lie where the format says; decoder and kernel agree', async () => {
  const modules = {
    odd: module(21, 3),
    even: module(32, 1, { seed: 2 }),
    wide: module(16, 4, { seed: 3, wide: true }),
  };
  const [artifact, input] = await packed(modules);
  for (const [name, { codes, rows, multiples, declaration }] of Object.entries(modules)) {
    const [n, k] = declaration.shape;
    const [np, blocks] = [Math.ceil(n / 16) * 16, k / 128];
    assert.deepEqual([artifact.module(name).layout, artifact.module(name).padded], ['w4a8', [np, k]]);
    const want = new Uint8Array((np * k) / 2);
    for (let row = 0; row < n; row++)
      for (let i = 0; i < k; i++) {
        const [chunk, quad, high] = [(i % 128) >> 5, (i % 16) >> 2, (i % 32) >> 4];
        const word = 128 * (chunk >> 1) + 4 * (4 * (row % 8) + quad) + 2 * (chunk & 1) + ((row % 16) >> 3);
        want[((row >> 4) * blocks + (i >> 7)) * 1024 + 4 * word + (i % 4)]! |= codes[row * k + i]! << (4 * high);
      }
    assert.deepEqual(typed<Uint8Array>(artifact.tensor(`${name}.packed`)), want);
    const factors = typed<Int8Array>(artifact.tensor(`${name}.group_scales`));
    assert.equal(factors.length, blocks * np);
    for (let b = 0; b < blocks; b++)
      for (let row = 0; row < np; row++) assert.equal(factors[b * np + row], row < n ? multiples[row * blocks + b] : 0);
    assert.deepEqual([...typed<Float32Array>(artifact.tensor(`${name}.channel_scales`))], rows);
  }
  for (const against of [undefined, input.dir]) {
    const report = await verifyArtifact({ dir: artifact.dir, against, runtime, kernel: runtime });
    assert.deepEqual(report.failures, []);
    for (const { name, emulatorRatio, kernelRatio } of report.modules) {
      assert.ok(emulatorRatio! > 0 && emulatorRatio! <= 1, `${name}: ${emulatorRatio}`);
      assert.ok(kernelRatio! > 0 && kernelRatio! <= 1, `${name}: ${kernelRatio}`);
    }
  }
  const [source, decoded] = [
    artifactSource(artifact.dir, runtime, true, true),
    artifactSource(artifact.dir, runtime, true),
  ];
  assert.ok('packed' in source && 'packed' in decoded);
  assert.equal(source.packed('odd.weight')?.kernel.name, 'w4a8');
  assert.equal(decoded.packed('odd.weight'), undefined);
});

test('ranks: each has its rows, or its groups with multiples of their own', async () => {
  const modules = { 'l.q_proj': module(64, 2), 'l.o_proj': module(20, 4, { seed: 2 }) };
  const [artifact, input] = await packed(modules, 2);
  assert.deepEqual(artifact.module('l.q_proj').ranks, { count: 2, split: 'n' });
  assert.deepEqual(artifact.module('l.o_proj').ranks, { count: 2, split: 'k' });
  assert.deepEqual(artifact.tensor('l.o_proj.rank1.group_scales').shape, [2, 32]);
  const report = await verifyArtifact({ dir: artifact.dir, against: input.dir, runtime });
  assert.deepEqual(report.failures, []);
});

test('other targets take the products, which are f16 numbers', async () => {
  const input = await checkpointOf(scratch(), 'canonical', { m: module(64, 2) });
  for (const target of ['marlin', 'tilus', 'turbomind', 'compressed-tensors', 'gptq']) {
    const output = path.join(scratch(), target);
    await packCheckpoint({ input, target, output, runtime });
    const report = await verifyArtifact({ dir: output, against: input.dir, runtime });
    assert.deepEqual(report.failures, [], target);
  }
});

test('scales that are no multiples, and other schemes, are refused', async () => {
  const free = made({ type: 'i4', n: 16, k: 256, group: 128 });
  const off = module(16, 2);
  off.scales[5]! += 1;
  const output = path.join(scratch(), 'out');
  const refused = async (bad: Made, code: string, says: RegExp) => {
    const input = await checkpointOf(scratch(), 'canonical', { bad });
    await assert.rejects(packCheckpoint({ input, target: 'w4a8', output, runtime }), designed(code, says));
  };
  await refused(free, 'LPQ_TARGET', /not whole multiples of one a row.*--group-scales integer/s);
  await refused(off, 'LPQ_PACK', /scales of bad, row 2, are not whole multiples/);
});

test('a declaration of two levels that is none', () => {
  const { declaration } = module(16, 2);
  assert.equal(declarationProblem(declaration), undefined);
  const { scales } = declaration;
  const wrong = [
    { ...declaration, type: 'i5' },
    { ...declaration, zeros: { kind: 'const', value: 8 } as const },
    { ...declaration, sparsity: '2:4' as const },
    { ...declaration, scales: { ...scales, dtype: 'bf16' as const } },
    { ...declaration, scales: { ...scales, global: true } },
  ];
  for (const each of wrong) assert.equal(declarationProblem(each)?.path, 'scales.twoLevel');
});

test('every kind of bit counts: codes, multiples and their padding, scales of rows', async () => {
  const [artifact, input] = await packed({ m: module(20, 2) });
  const shard = new Tampered(artifact.dir, 'model.safetensors');
  const next = random(17);
  const escaped: string[] = [];
  for (const { name, begin, end } of shard.tensors()) {
    if (name.startsWith('model.')) continue;
    for (let i = 0; i < 48; i++) {
      const bit = begin + (next() % (end - begin));
      await shard.flipped(bit, i % 2 ? 'artifact' : 'all', async () => {
        if (!(await isCaught(artifact.dir, i % 2 ? undefined : input.dir, runtime)))
          escaped.push(`${name}:${bit - begin}`);
      });
    }
  }
  assert.deepEqual(escaped, []);
});
