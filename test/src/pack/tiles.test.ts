import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { Artifact } from '../../../formats/artifact/read.js';
import { createRuntime, typed } from '../../../native/binding.js';
import { QUANT_TYPES, quantType, valueRange } from '../../../src/core/quant-type.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { planPack } from '../../../src/pack/plan.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { designed, scratch } from '../../formats/scratch.js';
import { checkpointOf, type Made, made } from './checkpoint.js';

const runtime = createRuntime(2);
const uint8 = { kind: 'int', dtype: 'u8' } as const;
const int16 = { kind: 'int', dtype: 'i16' } as const;

/** Packs, verifies with and without the checkpoint, and returns `module layout` lines. */
async function verified(target: string, modules: Record<string, Made>, ranks = 1): Promise<Artifact> {
  const dir = scratch();
  const input = await checkpointOf(dir, 'canonical', modules);
  const output = path.join(dir, 'packed');
  await packCheckpoint({ input, target, ranks, output, runtime });
  for (const against of [undefined, input.dir]) {
    const report = await verifyArtifact({ dir: output, against, runtime });
    assert.deepEqual(report.failures, [], `${target}${against ? ' --against' : ''}`);
    assert.deepEqual(
      report.unproved.filter((sentence) => !sentence.includes('carried tensors')),
      [],
    );
    // Everything that an fp16 kernel could read was run through an emulated one.
    for (const { name, type, layout, emulatorRatio } of report.modules) {
      const scales = input.module(name).scales.dtype;
      if (layout === 'carried' || valueRange(quantType(type)).max > 65504 || scales !== 'f16') continue;
      assert.ok(emulatorRatio !== undefined && emulatorRatio <= 1, `${target} ${name}: ${emulatorRatio}`);
    }
  }
  input.close();
  return Artifact.open(output);
}

const layouts = (artifact: Artifact): Record<string, string> =>
  Object.fromEntries(artifact.moduleNames().map((name) => [name, artifact.module(name).layout]));

test('tilus: every one of the 36 types reads back, padded and not, in groups and whole rows', async () => {
  const modules: Record<string, Made> = {};
  for (const [seed, { name }] of QUANT_TYPES.entries()) {
    modules[`a.${name}`] = made({ type: name, n: 64, k: 256, group: 64, seed: 3 * seed });
    modules[`b.${name}`] = made({ type: name, n: 37, k: 200, scaleDtype: 'bf16', seed: 5 * seed });
  }
  const artifact = await verified('tilus', modules);
  assert.deepEqual([...new Set(Object.values(layouts(artifact)))], ['tilus']);
});

/** Bytes of 255 are NaN as power-of-two scales. */
function powers(module: Made): Made {
  const scales = (module.data.scales as Uint8Array).map((e) => (e === 255 ? 0 : e));
  return { ...module, data: { ...module.data, scales } };
}

test('tilus: zero points, orders of columns, power-of-two scales', async () => {
  const artifact = await verified('tilus', {
    u3: made({ type: 'u3', n: 40, k: 128, group: 32, zeros: uint8 }),
    i5: made({ type: 'i5', n: 40, k: 128, group: 32, zeros: int16, zeroRange: [-200, 300], seed: 2 }),
    u1: made({ type: 'u1', n: 40, k: 128, zeros: { kind: 'const', value: 0.5 }, seed: 3 }),
    order: made({ type: 'i6', n: 40, k: 256, group: 32, extras: ['g_idx'], seed: 4 }),
    permuted: made({ type: 'f5e2m2', n: 40, k: 256, group: 64, extras: ['permutation'], seed: 5 }),
    mx: powers(made({ type: 'f4e2m1', n: 40, k: 64, group: 32, scaleDtype: 'f8_e8m0', seed: 6 })),
  });
  assert.deepEqual(Object.keys(artifact.module('i5').tensors), ['i5.packed', 'i5.scales', 'i5.zeros']);
  assert.equal(artifact.weights.spec('i5.zeros').dtype, 'F16');
  assert.equal(artifact.weights.spec('mx.scales').dtype, 'BF16');
});

test('tilus: the worked example of its format', async () => {
  const base = made({ type: 'u4', n: 32, k: 128 });
  const codes = new Uint8Array(32 * 64);
  codes[9 * 64 + 1] = 0x50; // (n, k) = (9, 3)
  const artifact = await verified('tilus', { m: { ...base, data: { ...base.data, codes } } });
  const bytes = artifact.tensor('m.packed').bytes();
  const expected = new Uint8Array(512 * 4);
  expected[82] = 0x50; // bits 20 to 23 of the word at byte 80
  assert.deepEqual(Buffer.from(bytes), Buffer.from(expected));
});

test('marlin: 8 bits, zero points, act-order, permuted columns, short groups', async () => {
  const artifact = await verified('marlin', {
    eight: made({ type: 'i8', n: 256, k: 128, group: 128 }),
    'eight.u': made({ type: 'u8', n: 100, k: 256, group: 64, zeros: uint8, seed: 2 }),
    asym: made({ type: 'u4', n: 300, k: 384, group: 128, zeros: uint8, seed: 3 }),
    'asym.i': made({ type: 'i4', n: 64, k: 256, group: 32, zeros: int16, zeroRange: [-8, 7], seed: 4 }),
    'asym.channel': made({ type: 'u4', n: 64, k: 256, zeros: uint8, seed: 5 }),
    'asym.const': made({ type: 'u4', n: 64, k: 160, group: 32, zeros: { kind: 'const', value: 3 }, seed: 6 }),
    order: made({ type: 'i4', n: 64, k: 256, group: 32, extras: ['g_idx'], seed: 7 }),
    permuted: made({ type: 'i8', n: 64, k: 256, group: 64, extras: ['permutation'], seed: 8 }),
    short: made({ type: 'i4', n: 64, k: 96, group: 32, seed: 9 }),
  });
  assert.deepEqual([...new Set(Object.values(layouts(artifact)))], ['marlin']);
});

const TURBOMIND = {
  u4: made({ type: 'u4', n: 64, k: 128, group: 32, zeros: uint8 }),
  i4: made({ type: 'i4', n: 100, k: 128, group: 128, seed: 2 }),
  'asym.i4': made({ type: 'i4', n: 40, k: 64, group: 64, zeros: int16, zeroRange: [-8, 7], seed: 3 }),
  u8: made({ type: 'u8', n: 64, k: 128, group: 64, zeros: uint8, seed: 4 }),
  i8: made({ type: 'i8', n: 64, k: 128, group: 64, seed: 5 }),
  fp4: made({ type: 'f4e2m1', n: 72, k: 128, group: 32, scaleDtype: 'f8_e8m0', seed: 6 }),
  fp8: made({ type: 'f8e4m3', n: 64, k: 128, group: 128, scaleDtype: 'bf16', seed: 7 }),
  'moe.experts.3.up_proj': made({ type: 'u4', n: 128, k: 64, group: 32, zeros: uint8, seed: 8 }),
  'moe.experts.3.down_proj': made({ type: 'i8', n: 64, k: 128, group: 32, seed: 9 }),
};

for (const target of ['turbomind', 'turbomind_sm70'])
  test(`${target}: u4, u8, fp4, fp8 and experts`, async () => {
    const artifact = await verified(target, TURBOMIND);
    assert.deepEqual([...new Set(Object.values(layouts(artifact)))], [target]);
  });

test('turbomind: a zero point that {s, -z s} cannot hold is refused', async () => {
  const dir = scratch();
  const base = made({ type: 'u4', n: 64, k: 64, group: 32, zeros: uint8 });
  for (const [name, bits, what] of [
    ['zero', 0, /is 0, so its zero point is lost/],
    ['large', 0x7bff, /beyond f16/],
  ] as const) {
    const scales = base.scales.slice();
    scales[5] = bits;
    const zeros = (base.data.zeros as Uint8Array).slice();
    zeros[5] = 15;
    const input = await checkpointOf(dir, name, { m: { ...base, data: { ...base.data, scales, zeros } } });
    await assert.rejects(
      packCheckpoint({ input, target: 'turbomind', output: path.join(dir, `${name}-out`), runtime }),
      designed('LPQ_PACK', what),
    );
    input.close();
  }
});

test('devices choose a layout for each module and say why', async () => {
  const modules = {
    a: made({ type: 'i4', n: 256, k: 256, group: 128 }),
    b: made({ type: 'u4', n: 64, k: 256, group: 64, zeros: uint8, seed: 2 }),
    c: made({ type: 'u3', n: 64, k: 256, group: 64, zeros: uint8, seed: 3 }),
    d: made({ type: 'i4', n: 72, k: 256, group: 128, seed: 4 }),
    e: made({ type: 'f6e3m2', n: 64, k: 256, seed: 5 }),
  };
  const wanted = { a: 'marlin', b: 'turbomind', c: 'tilus', d: 'tilus', e: 'tilus' };
  for (const target of ['sm80', 'sm86', 'sm89', 'sm90']) {
    const artifact = await verified(target, modules);
    const ampere = target < 'sm89';
    assert.deepEqual(
      layouts(artifact),
      ampere ? wanted : Object.fromEntries(Object.keys(modules).map((m) => [m, 'tilus'])),
    );
    for (const name of artifact.moduleNames()) {
      const { layout, notes } = artifact.module(name);
      assert.match(notes[0]!, new RegExp(`^${layout}, because `));
    }
  }
});

const ROLES = {
  'model.layers.0.self_attn.q_proj': made({ type: 'i4', n: 128, k: 256, group: 64 }),
  'model.layers.0.self_attn.o_proj': made({ type: 'i4', n: 256, k: 128, group: 64, seed: 2 }),
  'model.layers.0.mlp.gate_proj': made({ type: 'u4', n: 256, k: 256, group: 64, zeros: uint8, seed: 3 }),
  'model.layers.0.mlp.down_proj': made({ type: 'u4', n: 256, k: 256, group: 64, zeros: uint8, seed: 4 }),
  'model.layers.1.mlp.down_proj': made({ type: 'i4', n: 256, k: 192, group: 64, seed: 5 }),
  'model.layers.1.mlp.up_proj': made({ type: 'i8', n: 96, k: 256, group: 64, extras: ['g_idx'], seed: 6 }),
  'model.layers.1.mlp.odd_proj': made({ type: 'i4', n: 64, k: 256, group: 64, seed: 7 }),
};

for (const target of ['tilus', 'marlin', 'turbomind', 'sm80'])
  test(`${target}: two ranks share a model`, async () => {
    const artifact = await verified(target, ROLES, 2);
    const { modules } = artifact.manifest;
    const split = (name: string) => modules[`model.layers.${name}`]!.ranks;
    assert.deepEqual(split('0.self_attn.q_proj'), { count: 2, split: 'n' });
    assert.deepEqual(split('0.self_attn.o_proj'), { count: 2, split: 'k' });
    assert.deepEqual(split('0.mlp.down_proj'), { count: 2, split: 'k' });
    assert.equal(split('1.mlp.down_proj'), undefined);
    assert.match(modules['model.layers.1.mlp.down_proj']!.notes.at(-1)!, /its groups of 64 do not divide the 96/);
    assert.match(modules['model.layers.1.mlp.odd_proj']!.notes.at(-1)!, /neither column- nor row-parallel/);
    assert.ok(artifact.weights.has(`model.layers.0.mlp.gate_proj.rank1.${target === 'marlin' ? 'B' : 'packed'}`));
  });

test('whole rows of K are shared too, with the same scales for every rank', async () => {
  const artifact = await verified('tilus', { 'l.o_proj': made({ type: 'i3', n: 64, k: 256 }) }, 2);
  const [a, b] = [0, 1].map((rank) => [...typed<Uint16Array>(artifact.tensor(`l.o_proj.rank${rank}.scales`))]);
  assert.deepEqual(a, b);
});

test('ranks that a target or a model does not have are refused', async () => {
  const dir = scratch();
  const input = await checkpointOf(dir, 'c', { 'l.down_proj': made({ type: 'i4', n: 64, k: 192, group: 64 }) });
  assert.throws(() => planPack(input, 'gptq', 2), designed('LPQ_USAGE', /no tensors for each rank/));
  for (const ranks of [0, 1.5, Number.NaN])
    assert.throws(() => planPack(input, 'tilus', ranks), designed('LPQ_USAGE', /--tp/));
  assert.match(planPack(input, 'tilus', 2).refusal!.message, /no module of .* can be split over 2 ranks/);
  input.close();
});
