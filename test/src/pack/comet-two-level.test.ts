import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { Artifact } from '../../../formats/artifact/read.js';
import type { Activations } from '../../../formats/canonical/schema.js';
import { createRuntime, type NativeRuntime, type OpParams, type Tensor, typed } from '../../../native/binding.js';
import { artifactSource } from '../../../src/artifact/open.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { scratch } from '../../formats/scratch.js';
import { random } from '../verify/numbers.js';
import { isCaught, Tampered } from '../verify/tamper.js';
import { checkpointOf, type Made, made, twoLevels } from './checkpoint.js';

const runtime = createRuntime(2);

const reads = (...bits: (4 | 8)[]): Activations => ({ block: 128, bits, clip: bits.map(() => 1) });
const module = (n: number, activations: Activations, seed: number, more: Partial<Parameters<typeof made>[0]> = {}) =>
  made({ type: 'i4', n, k: 128 * activations.bits.length, group: 128, activations, seed, ...more });
const twoLevel = true;

async function packed(modules: Record<string, Made>, ranks = 1): Promise<[Artifact, string]> {
  const dir = scratch();
  const input = await checkpointOf(dir, 'canonical', modules);
  const output = path.join(dir, 'packed');
  await packCheckpoint({ input, target: 'comet', ranks, output, runtime });
  return [Artifact.open(output), input.dir];
}

test('weights as in layout w4a8, activations as in layout comet; what reads them agrees', async () => {
  const modules = {
    mixed: module(21, reads(4, 8, 4), 3, { twoLevel }),
    wide: module(32, reads(8, 4), 4, { twoLevel, scaleDtype: 'f32' }),
    ordered: module(40, reads(4, 4), 5, { twoLevel, extras: ['permutation'] }),
  };
  const [artifact, against] = await packed(modules);
  for (const [name, seed] of [['mixed', 3] as const, ['ordered', 5] as const]) {
    const { shape } = modules[name].declaration;
    const [n, groups] = [shape[0], shape[1] / 128];
    const entry = artifact.module(name);
    const np = Math.ceil(n / 16) * 16;
    assert.deepEqual([entry.layout, entry.padded], ['comet_two_level', [np, 128 * groups]]);
    const { rows, multiples } = twoLevels(n, groups, seed);
    assert.deepEqual([...typed<Float32Array>(artifact.tensor(`${name}.channel_scales`))], rows);
    const got = typed<Int8Array>(artifact.tensor(`${name}.group_scales`));
    for (let row = 0; row < np; row++)
      for (let g = 0; g < groups; g++)
        assert.equal(got[g * np + row], row < n ? multiples[row * groups + g] : 0, `${name} ${row} ${g}`);
    assert.equal(name === 'ordered', Object.hasOwn(entry.tensors, `${name}.permutation`));
  }
  assert.deepEqual([...typed<Int32Array>(artifact.tensor('mixed.blocks'))], [-1, 0, -2]);
  for (const each of [undefined, against]) {
    const report = await verifyArtifact({ dir: artifact.dir, against: each, runtime, kernel: runtime });
    assert.deepEqual(report.failures, []);
    for (const { name, emulatorRatio, kernelRatio } of report.modules) {
      assert.ok(emulatorRatio! > 0 && emulatorRatio! <= 1, `${name}: ${emulatorRatio}`);
      assert.ok(kernelRatio! > 0 && kernelRatio! <= 1, `${name}: ${kernelRatio}`);
    }
  }
  const source = artifactSource(artifact.dir, runtime);
  const mixed = 'mixed' in source ? await source.mixed('mixed.weight') : undefined;
  assert.deepEqual([...typed<Float32Array>(mixed!.scales)], twoLevels(21, 3, 3).products);
  for (const tensor of [mixed!.codes, mixed!.scales]) tensor.dispose();
  source.close();
});

test('ranks have blocks, multiples and numbers of their own; one level beside two', async () => {
  const [artifact, against] = await packed(
    {
      'l.q_proj': module(64, reads(4, 8), 6, { twoLevel }),
      'l.o_proj': module(20, reads(8, 4, 4, 8), 7, { twoLevel }),
      'l.up_proj': module(32, reads(4, 4), 8),
    },
    2,
  );
  assert.deepEqual(artifact.module('l.o_proj').ranks, { count: 2, split: 'k' });
  assert.equal(artifact.module('l.up_proj').layout, 'comet');
  const report = await verifyArtifact({ dir: artifact.dir, against, runtime });
  assert.deepEqual(report.failures, []);
});

test('bits of every tensor count', async () => {
  const [artifact, against] = await packed({ m: module(20, reads(4, 8), 9, { twoLevel }) });
  const shard = new Tampered(artifact.dir, 'model.safetensors');
  const next = random(18);
  const escaped: string[] = [];
  for (const { name, begin, end } of shard.tensors()) {
    if (name.startsWith('model.')) continue;
    const small = end - begin <= 64;
    for (let i = 0; i < (small ? end - begin : 16); i++) {
      const bit = begin + (small ? i : next() % (end - begin));
      await shard.flipped(bit, i % 2 ? 'artifact' : 'all', async () => {
        if (!(await isCaught(artifact.dir, i % 2 ? undefined : against, runtime)))
          escaped.push(`${name}:${bit - begin}`);
      });
    }
  }
  assert.deepEqual(escaped, []);
});

test('a kernel that takes another factor, or another scale of a row, is caught', async () => {
  const [artifact] = await packed({ m: module(24, reads(4, 8, 4), 10, { twoLevel }) });
  const wrongly = (place: number, at: number): NativeRuntime =>
    new Proxy(runtime, {
      get(target, key) {
        const value = Reflect.get(target, key, target);
        if (key === 'enqueue')
          return (op: string, inputs: readonly Tensor[], outputs: readonly Tensor[], p: OpParams) => {
            if (op !== 'gemm_comet') return target.enqueue(op, inputs, outputs, p);
            const copy = runtime.allocate(inputs[place]!.dtype, inputs[place]!.shape);
            copy.bytes().set(inputs[place]!.bytes());
            copy.bytes()[at]! ^= 2;
            return target.enqueue(op, inputs.with(place, copy), outputs, p);
          };
        return typeof value === 'function' ? value.bind(target) : value;
      },
    });
  for (const [place, at] of [
    [5, 2],
    [6, 0],
  ] as const) {
    const report = await verifyArtifact({ dir: artifact.dir, runtime, kernel: wrongly(place, at), emulate: false });
    assert.equal(report.failures[0]?.check, 'kernel', `${place}`);
  }
});
