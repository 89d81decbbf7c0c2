import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { createRuntime, type NativeRuntime, type OpParams } from '../../../native/binding.js';
import { QUANT_TYPES } from '../../../src/core/quant-type.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { scratch } from '../../formats/scratch.js';
import { checkpointOf, type Made, made } from './checkpoint.js';

// What `lpq verify --device cuda` does with the kernels of a device, here with gemm_packed of the CPU.

const runtime = createRuntime(1);

/** The runtime with an operation that is told something else. */
const wrongly = (operation: string, change: (p: OpParams) => OpParams): NativeRuntime =>
  new Proxy(runtime, {
    get(target, key) {
      const value = Reflect.get(target, key, target);
      if (key === 'enqueue')
        return (op: string, inputs: never, outputs: never, p: OpParams) =>
          target.enqueue(op, inputs, outputs, op === operation ? change(p) : p);
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });

async function packed(modules: Record<string, Made>, target = 'tilus'): Promise<string> {
  const dir = scratch();
  const input = await checkpointOf(dir, 'canonical', modules);
  const output = path.join(dir, 'packed');
  await packCheckpoint({ input, target, output, runtime });
  input.close();
  return output;
}

test('every type: the kernel computes the product of what the bytes decode to', async () => {
  const uint8 = { kind: 'int', dtype: 'u8' } as const;
  const int16 = { kind: 'int', dtype: 'i16' } as const;
  const modules: Record<string, Made> = {};
  for (const [seed, { name }] of QUANT_TYPES.entries())
    modules[name] = made({ type: name, n: 36, k: 160, group: 32, seed });
  modules.zeros = made({ type: 'u3', n: 70, k: 96, group: 32, zeros: uint8 });
  modules.negative = made({ type: 'i4', n: 20, k: 256, group: 128, zeros: int16, zeroRange: [-9, 9] });
  const dir = await packed(modules);
  const report = await verifyArtifact({ dir, runtime, kernel: runtime, emulate: false });
  assert.deepEqual(report.failures, []);
  const check = report.checks.find(({ name }) => name === 'kernel');
  assert.equal(check?.status, 'passed');
  // 188 tokens of each dtype.
  const columns = 36 * QUANT_TYPES.length + 64 + 20;
  assert.equal(check.count, 2 * 188 * columns);
  // Random codes of f8e5m2 hold an infinity in every row: nothing to compare there but that all is written.
  for (const { name, kernelRatio } of report.modules)
    assert.ok(kernelRatio! <= 1 && (kernelRatio! > 0 || name === 'f8e5m2'), `${name} ${kernelRatio}`);
});

const uint8 = { kind: 'int', dtype: 'u8' } as const;

/** Modules of each target with what its kernel has to know of: bits, signs, groups, zero points, orders of columns. */
const LAYOUTS: Readonly<Record<string, Record<string, Made>>> = {
  marlin: {
    middle: made({ type: 'i4', n: 40, k: 192, group: 64, seed: 1 }),
    rows: made({ type: 'u4', n: 70, k: 128, zeros: { kind: 'const', value: 8 }, seed: 2 }),
    zeros: made({ type: 'u4', n: 40, k: 160, group: 32, zeros: uint8, seed: 3 }),
    wide: made({ type: 'i8', n: 33, k: 256, group: 64, seed: 4 }),
    wideZeros: made({ type: 'u8', n: 33, k: 256, group: 64, zeros: uint8, seed: 5 }),
    order: made({ type: 'i4', n: 40, k: 256, group: 64, extras: ['g_idx'], seed: 6 }),
    permuted: made({ type: 'i4', n: 40, k: 256, group: 64, extras: ['permutation'], seed: 7 }),
  },
  turbomind: {
    middle: made({ type: 'i4', n: 40, k: 256, group: 128, seed: 1 }),
    zeros: made({ type: 'u4', n: 70, k: 96, group: 32, zeros: uint8, seed: 2 }),
    wide: made({ type: 'u8', n: 40, k: 128, group: 64, zeros: uint8, seed: 3 }),
    'model.layers.0.mlp.experts.3.up_proj': made({ type: 'u4', n: 96, k: 128, group: 64, zeros: uint8, seed: 4 }),
    fp8: made({ type: 'f8e4m3', n: 40, k: 128, group: 128, seed: 6 }),
  },
};

for (const [target, modules] of Object.entries(LAYOUTS))
  test(`${target}: the kernel reads the layout's own bytes`, async () => {
    const dir = await packed(modules, target);
    const report = await verifyArtifact({ dir, runtime, kernel: runtime, emulate: false });
    assert.deepEqual(report.failures, []);
    assert.equal(report.checks.find(({ name }) => name === 'kernel')?.status, 'passed');
    assert.equal(report.modules.length, Object.keys(modules).length);
    for (const { name, layout, kernelRatio } of report.modules) {
      assert.equal(layout, target, name);
      assert.ok(kernelRatio! > 0 && kernelRatio! <= 1, `${name} ${kernelRatio}`);
    }
  });

test('a kernel of another layout that is wrong by one step of one thing is caught', async () => {
  for (const [target, op, change] of [
    ['marlin', 'gemm_marlin', { groupSize: 0 }],
    ['turbomind', 'gemm_turbomind', { experts: true }],
  ] as const) {
    const dir = await packed({ m: made({ type: 'i4', n: 40, k: 128, group: 128, seed: 5 }) }, target);
    const wrong = wrongly(op, (p) => ({ ...p, ...change }));
    const report = await verifyArtifact({ dir, runtime, kernel: wrong, emulate: false });
    // MARLIN with one row of scales has them in the order of whole rows whatever the group is: nothing changes.
    assert.equal(report.ok, target === 'marlin');
  }
});

test('a kernel that is wrong by one step of one thing is caught', async () => {
  const dir = await packed({ m: made({ type: 'i4', n: 40, k: 128, group: 64, seed: 5 }) });
  const wrong = (change: (p: OpParams) => OpParams) => wrongly('gemm_packed', change);
  for (const change of [
    (p: OpParams) => ({ ...p, zero: 1 / 64 }),
    (p: OpParams) => ({ ...p, signed: false, zero: 8.01 }),
  ]) {
    const report = await verifyArtifact({ dir, runtime, kernel: wrong(change), emulate: false });
    assert.equal(report.ok, false);
    assert.equal(report.failures[0]?.check, 'kernel');
    assert.match(report.failures[0]?.message ?? '', /^module 'm': with 1 tokens in f16 the kernel computes /);
  }
});

test('without a device nothing is run, and the report says so', async () => {
  const dir = await packed({ m: made({ type: 'u2', n: 20, k: 64, group: 32 }) });
  const report = await verifyArtifact({ dir, runtime, emulate: false });
  const check = report.checks.find(({ name }) => name === 'kernel');
  assert.deepEqual([check?.status, check?.detail], ['skipped', 'no device was requested, or there is none']);
});
