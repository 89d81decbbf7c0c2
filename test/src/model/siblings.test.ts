import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import type { Activations } from '../../../formats/canonical/schema.js';
import type { ModuleData } from '../../../formats/canonical/write.js';
import { createRuntime, readTyped } from '../../../native/binding.js';
import { artifactSource } from '../../../src/artifact/open.js';
import type { PackedWeight } from '../../../src/model/kernels/kernel.js';
import { disposePacked, tensorsOf, uploadPacked } from '../../../src/model/packed.js';
import type { Block, BlockWeights } from '../../../src/model/program.js';
import { joinSiblings } from '../../../src/model/siblings.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { scratch } from '../../formats/scratch.js';
import { f32 } from '../../native/support.js';
import { checkpointOf, type Made, made } from '../pack/checkpoint.js';

const rt = createRuntime(2);
const [Q, K] = ['model.layers.0.self_attn.q_proj', 'model.layers.0.self_attn.k_proj'];
const WHOLE = 'model.layers.0.mlp.down_proj';

/** One below the other: a module whose rows are theirs. */
function below(a: Made, b: Made): Made {
  const [n, k] = a.declaration.shape;
  const data = Object.fromEntries(
    Object.entries(a.data).map(([name, first]) => {
      const second = b.data[name as keyof ModuleData];
      const bytes = [first, second].map((each) => {
        const { buffer, byteOffset, byteLength } = each as Uint8Array;
        return Buffer.from(buffer, byteOffset, byteLength);
      });
      const kind = first!.constructor as new (buffer: ArrayBuffer) => Uint8Array;
      return [name, name === 'permutation' ? first : new kind(new Uint8Array(Buffer.concat(bytes)).buffer)];
    }),
  ) as unknown as ModuleData;
  return { ...a, declaration: { ...a.declaration, shape: [n + b.declaration.shape[0], k] }, data };
}

function blockOf(shapes: readonly (readonly [number, number])[], id = 'qkv'): Block {
  const linears = shapes.map(([n, k], i) => ({ name: [Q, K][i]!, n, k }));
  return { index: 0, tensors: new Map(), stages: [{ id, feeds: [{ id, linears }] }] } as unknown as Block;
}

const activations = (bits: readonly (4 | 8)[]): Activations => ({
  block: 128,
  bits: [...bits],
  clip: bits.map((_, i) => 1 - i / 16),
});
const CASES: readonly (readonly [target: string, kernel: string, options: Parameters<typeof made>[0]])[] = [
  ['tilus', 'tilus', { type: 'i4', n: 0, k: 256, group: 128 }],
  ['tilus', 'tilus', { type: 'u3', n: 0, k: 256, group: 64, zeros: { kind: 'int', dtype: 'u8' } }],
  ['tilus', 'tilus', { type: 'f6e3m2', n: 0, k: 256, scaleDtype: 'bf16' }],
  ['marlin', 'marlin', { type: 'i4', n: 0, k: 256, group: 128 }],
  ['marlin', 'marlin', { type: 'i4', n: 0, k: 256 }],
  ['marlin', 'marlin', { type: 'u8', n: 0, k: 256, group: 32, zeros: { kind: 'int', dtype: 'u8' } }],
  [
    'turbomind',
    'turbomind',
    { type: 'u4', n: 0, k: 256, group: 64, zeros: { kind: 'int', dtype: 'u8' }, zeroRange: [0, 15] },
  ],
  ['turbomind', 'turbomind', { type: 'f4e2m1', n: 0, k: 256, group: 32, scaleDtype: 'f8_e8m0' }],
  ['turbomind', 'turbomind', { type: 'f8e4m3', n: 0, k: 256, group: 128 }],
  ['comet', 'comet', { type: 'i4', n: 0, k: 256, group: 128, activations: activations([8, 4]) }],
  ['w4a8', 'w4a8', { type: 'i4', n: 0, k: 256, group: 128, twoLevel: true }],
  ['compressed-tensors-w8a8', 'w8a8', { type: 'i8', n: 0, k: 256 }],
];

for (const [target, kernel, options] of CASES)
  test(`${target} of ${options.type}${options.group ? ` in groups of ${options.group}` : ''}: joined siblings are the pack of both`, async () => {
    const [q, k] = [made({ ...options, n: 512, seed: 3 }), made({ ...options, n: 256, seed: 50 })];
    const dir = scratch();
    const input = await checkpointOf(dir, 'canonical', { [Q]: q, [K]: k, [WHOLE]: below(q, k) });
    const output = path.join(dir, 'packed');
    await packCheckpoint({ input, target, output, runtime: rt });
    const source = artifactSource(output, rt, true, true);
    assert.ok('packed' in source);
    const packed = (name: string) => uploadPacked(rt, source.packed(`${name}.weight`)!);
    const weights: BlockWeights = new Map();
    weights.packed = new Map([Q, K].map((name) => [`${name}.weight`, packed(name)]));
    const want = packed(WHOLE);
    assert.equal(want.kernel.name, kernel);
    await joinSiblings(rt, blockOf([q, k].map(({ declaration }) => declaration.shape as [number, number])), weights);
    const joined = weights.joined?.get(Q);
    assert.deepEqual(joined, { name: `${Q}+${K}`, n: 768, k: 256, bias: false });
    assert.deepEqual([...weights.packed.keys()], [`${Q}+${K}.weight`]);
    const got = weights.packed.get(`${Q}+${K}.weight`)!;
    const facts = (weight: PackedWeight) => {
      const names = Object.keys(tensorsOf(weight));
      return { ...weight, ...Object.fromEntries(names.map((name) => [name, 0])) };
    };
    assert.deepEqual(facts(got), facts(want));
    const wanted = tensorsOf(want);
    for (const [name, tensor] of Object.entries(tensorsOf(got))) {
      assert.deepEqual(tensor.shape, wanted[name]!.shape, name);
      assert.deepEqual(await readTyped(rt, tensor), await readTyped(rt, wanted[name]!), name);
    }
    for (const weight of [got, want]) disposePacked(weight);
    source.close();
  });

test('what is not alike stays apart', async () => {
  const dir = scratch();
  const tilus = { type: 'i4', n: 64, k: 256, group: 128 } as const;
  const other = { ...tilus, activations: activations([4, 8]) };
  const pairs: readonly (readonly [target: string, a: Made, b: Made])[] = [
    ['tilus', made(tilus), made({ ...tilus, type: 'i3' })],
    ['tilus', made(tilus), made({ ...tilus, group: 64 })],
    ['tilus', made({ ...tilus, n: 40 }), made(tilus)],
    ['marlin', made(tilus), made(tilus)],
    [
      'marlin',
      made({ ...tilus, n: 256, extras: ['permutation'] }),
      made({ ...tilus, n: 256, extras: ['permutation'] }),
    ],
    ['comet', made(other), made({ ...other, activations: activations([8, 4]) })],
  ];
  for (const [i, [target, a, b]] of pairs.entries()) {
    const input = await checkpointOf(dir, `canonical-${i}`, { [Q]: a, [K]: b });
    const output = path.join(dir, `packed-${i}`);
    await packCheckpoint({ input, target, output, runtime: rt });
    const source = artifactSource(output, rt, true, true);
    assert.ok('packed' in source);
    const weights: BlockWeights = new Map();
    weights.packed = new Map([Q, K].map((name) => [`${name}.weight`, source.packed(`${name}.weight`)!]));
    const before = new Map(weights.packed);
    await joinSiblings(rt, blockOf([a, b].map(({ declaration }) => declaration.shape as [number, number])), weights);
    assert.equal(weights.joined, undefined, `${i}`);
    assert.deepEqual(weights.packed, before);
    for (const weight of before.values()) disposePacked(weight);
    source.close();
  }
});

test('dense weights and biases become rows below one another; other feeds stay as they are', async () => {
  const rows = (n: number, seed: number) =>
    f32(
      [n, 4],
      Float32Array.from({ length: 4 * n }, (_, i) => i + seed),
    );
  const bias = (n: number, seed: number) =>
    f32(
      [n],
      Float32Array.from({ length: n }, (_, i) => i + seed),
    );
  const make = (): BlockWeights =>
    new Map([
      [`${Q}.weight`, rows(3, 0)],
      [`${Q}.bias`, bias(3, 0)],
      [`${K}.weight`, rows(2, 50)],
      [`${K}.bias`, bias(2, 50)],
    ]);
  const weights = make();
  const shapes = [
    [3, 4],
    [2, 4],
  ] as const;
  await joinSiblings(rt, blockOf(shapes), weights);
  assert.deepEqual(weights.joined?.get(Q), { name: `${Q}+${K}`, n: 5, k: 4, bias: true });
  assert.deepEqual([...weights.keys()].sort(), [`${Q}+${K}.bias`, `${Q}+${K}.weight`]);
  const read = async (name: string) => [...(await readTyped<Float32Array>(rt, weights.get(`${Q}+${K}.${name}`)!))];
  assert.deepEqual(await read('weight'), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 50, 51, 52, 53, 54, 55, 56, 57]);
  assert.deepEqual(await read('bias'), [0, 1, 2, 50, 51]);
  const experts = make();
  await joinSiblings(rt, blockOf(shapes, 'mla.a'), experts);
  assert.deepEqual([experts.joined, experts.size], [undefined, 4]);
  const uneven = make();
  uneven.delete(`${K}.bias`);
  await joinSiblings(rt, blockOf(shapes), uneven);
  assert.deepEqual([uneven.joined, uneven.size], [undefined, 3]);
});
