import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { Artifact } from '../../../formats/artifact/read.js';
import type { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import type { Activations } from '../../../formats/canonical/schema.js';
import { createRuntime, type NativeRuntime, type OpParams, type Tensor, typed } from '../../../native/binding.js';
import { artifactSource } from '../../../src/artifact/open.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { planPack } from '../../../src/pack/plan.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { designed, scratch } from '../../formats/scratch.js';
import { random } from '../verify/numbers.js';
import { isCaught, Tampered } from '../verify/tamper.js';
import { checkpointOf, type Made, made } from './checkpoint.js';

const runtime = createRuntime(2);

/** Blocks of these bits, clipped at shares that only f32 holds. */
const reads = (...bits: (4 | 8)[]): Activations => ({
  block: 128,
  bits,
  clip: bits.map((each, b) => (each === 8 ? 1 : Math.fround(0.7 + 0.1 * b))),
});

function module(n: number, activations: Activations, options: Partial<Parameters<typeof made>[0]> = {}): Made {
  return made({ type: 'i4', n, k: 128 * activations.bits.length, group: 128, activations, ...options });
}

async function packed(modules: Record<string, Made>, ranks = 1): Promise<[Artifact, CanonicalCheckpoint]> {
  const dir = scratch();
  const input = await checkpointOf(dir, 'canonical', modules);
  const output = path.join(dir, 'packed');
  await packCheckpoint({ input, target: 'comet', ranks, output, runtime });
  return [Artifact.open(output), input];
}

test('every code, scale, precision and place lies where the format says; what reads them agrees', async () => {
  const modules = {
    mixed: module(21, reads(4, 8, 4)),
    eights: module(16, reads(8, 8), { seed: 2 }),
    fours: module(40, reads(4), { seed: 3, extras: ['permutation'] }),
  };
  const [artifact, input] = await packed(modules);
  for (const [name, { codes, scales, declaration }] of Object.entries(modules)) {
    const [n, k] = declaration.shape;
    const [np, blocks] = [Math.ceil(n / 16) * 16, k / 128];
    const entry = artifact.module(name);
    assert.deepEqual([entry.layout, entry.padded], ['comet', [np, k]]);
    assert.deepEqual(entry.activations, declaration.activations);
    const part = <T>(suffix: string): T => typed(artifact.tensor(`${name}.${suffix}`)) as T;
    const want = new Uint8Array((np * k) / 2);
    for (let row = 0; row < n; row++)
      for (let i = 0; i < k; i++) {
        const [chunk, quad, high] = [(i % 128) >> 5, (i % 16) >> 2, (i % 32) >> 4];
        const byte =
          512 * (chunk >> 1) + 16 * (4 * (row % 8) + quad) + 4 * (2 * (chunk & 1) + ((row % 16) >> 3)) + (i % 4);
        want[((row >> 4) * blocks + (i >> 7)) * 1024 + byte]! |= codes[row * k + i]! << (4 * high);
      }
    assert.deepEqual(part<Uint8Array>('packed'), want);
    const wide = part<Float32Array>('scales');
    assert.deepEqual(artifact.tensor(`${name}.scales`).shape, [blocks, np]);
    for (let b = 0; b < blocks; b++)
      for (let row = 0; row < np; row++) {
        const bits = row < n ? scales[row * blocks + b]! : 0;
        assert.equal(wide[b * np + row], bits === 0 ? 0 : (1 + (bits & 1023) / 1024) * 2 ** ((bits >> 10) - 15));
      }
    const { bits, clip } = declaration.activations!;
    assert.deepEqual([...part<Uint8Array>('bits')], bits);
    assert.deepEqual([...part<Float32Array>('clip')], clip);
    const numbers = { 4: -1, 8: 0 };
    assert.deepEqual(
      [...part<Int32Array>('blocks')],
      bits.map((each) => (each === 8 ? numbers[8]++ : numbers[4]--)),
    );
  }
  for (const against of [undefined, input.dir]) {
    const report = await verifyArtifact({ dir: artifact.dir, against, runtime, kernel: runtime });
    assert.deepEqual(report.failures, []);
    for (const { name, emulatorRatio, kernelRatio } of report.modules) {
      assert.ok(emulatorRatio! > 0 && emulatorRatio! <= 1, `${name}: ${emulatorRatio}`);
      assert.ok(kernelRatio! > 0 && kernelRatio! <= 1, `${name}: ${kernelRatio}`);
    }
  }
});

test('ranks: each has its rows, or its blocks with their precisions', async () => {
  const modules = {
    'l.q_proj': module(64, reads(4, 8)),
    'l.o_proj': module(20, reads(8, 4, 4, 8), { seed: 2 }),
    'l.up_proj': module(40, reads(4, 4), { seed: 3, extras: ['permutation'] }),
    'l.down_proj': module(24, reads(4, 8), { seed: 4, extras: ['permutation'] }),
  };
  const [artifact, input] = await packed(modules, 2);
  assert.deepEqual(artifact.module('l.q_proj').ranks, { count: 2, split: 'n' });
  assert.deepEqual(artifact.module('l.o_proj').ranks, { count: 2, split: 'k' });
  assert.deepEqual(artifact.module('l.o_proj').padded, [32, 256]);
  assert.equal(artifact.module('l.down_proj').ranks, undefined); // its features are reordered
  assert.deepEqual([...typed<Int32Array>(artifact.tensor('l.o_proj.rank0.blocks'))], [0, -1]);
  assert.deepEqual([...typed<Int32Array>(artifact.tensor('l.o_proj.rank1.blocks'))], [-1, 0]);
  const report = await verifyArtifact({ dir: artifact.dir, against: input.dir, runtime, kernel: runtime });
  assert.deepEqual(report.failures, []);
  for (const { name, emulatorRatio } of report.modules) assert.ok(emulatorRatio! <= 1, name);
});

test('scales of bf16 and f32 come back as they were', async () => {
  const [artifact, input] = await packed({
    b: module(16, reads(4, 4), { scaleDtype: 'bf16' }),
    f: module(16, reads(8), { scaleDtype: 'f32', seed: 5 }),
  });
  const report = await verifyArtifact({ dir: artifact.dir, against: input.dir, runtime, kernel: runtime });
  assert.deepEqual(report.failures, []);
});

const REFUSED: readonly [string, Made, RegExp][] = [
  ['weights alone', made({ type: 'i4', n: 16, k: 128, group: 128 }), /activations are not quantized.*--method fmpq/s],
  ['other widths', module(16, reads(4), { type: 'i5' }), /holds i5 codes, and COMET takes i4/],
  ['scales of 8 bits', module(16, reads(4), { scaleDtype: 'f8_e4m3' }), /scales are f8_e4m3/],
];

test('what does not fit is refused, or carried beside what does', async () => {
  for (const [what, bad, says] of REFUSED) {
    const dir = scratch();
    const alone = await checkpointOf(dir, 'alone', { bad });
    const output = path.join(dir, 'out');
    await assert.rejects(
      packCheckpoint({ input: alone, target: 'comet', output, runtime }),
      designed('LPQ_TARGET', says),
    );
    const beside = await checkpointOf(dir, 'beside', { bad, good: module(16, reads(4)) });
    const plan = planPack(beside, 'comet');
    assert.equal(plan.decisions.get('bad')?.action, 'fallback', what);
    await packCheckpoint({ input: beside, target: 'comet', output, runtime });
    const artifact = Artifact.open(output);
    assert.equal(artifact.module('bad').layout, 'carried');
    assert.deepEqual(artifact.module('bad').activations, bad.declaration.activations);
    const report = await verifyArtifact({ dir: output, against: beside.dir, runtime });
    assert.deepEqual(report.failures, []);
    // What reads codes is multiplied so, whatever its layout.
    const source = artifactSource(output, runtime);
    assert.ok('mixed' in source);
    const mixed = await source.mixed('bad.weight');
    assert.equal(mixed !== undefined, bad.declaration.activations !== undefined);
    for (const tensor of [mixed?.codes, mixed?.scales]) tensor?.dispose();
    source.close();
  }
});

test('what the decoder hands to W4Ax is what was quantized', async () => {
  const made = module(21, reads(4, 8), { extras: ['permutation'] });
  const [artifact] = await packed({ m: made });
  const source = artifactSource(artifact.dir, runtime);
  assert.ok('mixed' in source);
  const { codes, scales, form } = (await source.mixed('m.weight'))!;
  assert.deepEqual(
    [...typed<Int8Array>(codes)],
    made.codes.map((code) => (code ^ 8) - 8),
  );
  assert.equal(typed<Float32Array>(scales).length, made.scales.length);
  assert.deepEqual([...form.blocks.bits], [4, 8]);
  assert.deepEqual([...form.order!], [...(made.data.permutation as Int32Array)]);
  assert.equal(source.mixed('model.norm.weight'), undefined);
  source.close();
});

test('every bit of precisions, clips and places counts, and bits of codes, scales and padding at random', async () => {
  const [artifact, input] = await packed({ m: module(20, reads(4, 8), { extras: ['permutation'] }) });
  const shard = new Tampered(artifact.dir, 'model.safetensors');
  const next = random(17);
  const escaped: string[] = [];
  for (const { name, begin, end } of shard.tensors()) {
    if (name.startsWith('model.')) continue;
    const small = end - begin <= 64;
    for (let i = 0; i < (small ? end - begin : 24); i++) {
      const bit = begin + (small ? i : next() % (end - begin));
      await shard.flipped(bit, i % 2 ? 'artifact' : 'all', async () => {
        if (!(await isCaught(artifact.dir, i % 2 ? undefined : input.dir, runtime)))
          escaped.push(`${name}:${bit - begin}`);
      });
    }
  }
  assert.deepEqual(escaped, []);
});

test('a kernel that is wrong by one step of one thing is caught', async () => {
  const [artifact] = await packed({ m: module(24, reads(4, 8, 4)) });
  const wrongly = (operation: string, change: (inputs: readonly Tensor[]) => readonly Tensor[]): NativeRuntime =>
    new Proxy(runtime, {
      get(target, key) {
        const value = Reflect.get(target, key, target);
        if (key === 'enqueue')
          return (op: string, inputs: readonly Tensor[], outputs: readonly Tensor[], p: OpParams) =>
            target.enqueue(op, op === operation ? change(inputs) : inputs, outputs, p);
        return typeof value === 'function' ? value.bind(target) : value;
      },
    });
  for (const [operation, change, says] of [
    // Other clips: other codes.
    [
      'quantize_comet',
      (inputs: readonly Tensor[]) => inputs.with(2, nearOne(inputs[2]!)),
      /activations become .* codes|the scale of block/,
    ],
    // A scale, a code that is another.
    ['gemm_comet', (inputs: readonly Tensor[]) => inputs.with(5, turned(inputs[5]!)), /sums up|computes/],
    ['gemm_comet', (inputs: readonly Tensor[]) => inputs.with(4, turned(inputs[4]!)), /exactly it is/],
  ] as const) {
    const report = await verifyArtifact({
      dir: artifact.dir,
      runtime,
      kernel: wrongly(operation, change),
      emulate: false,
    });
    assert.equal(report.failures[0]?.check, 'kernel', operation);
    assert.match(report.failures[0]?.message ?? '', says);
  }
});

/** The same bytes, one of them changed. */
function turned(tensor: Tensor): Tensor {
  const copy = runtime.allocate(tensor.dtype, tensor.shape);
  copy.bytes().set(tensor.bytes());
  copy.bytes()[2]! ^= 0x11;
  return copy;
}

function nearOne(clip: Tensor): Tensor {
  const copy = runtime.allocate('f32', clip.shape);
  typed<Float32Array>(copy).set(typed<Float32Array>(clip).map((share) => share * 0.99));
  return copy;
}
