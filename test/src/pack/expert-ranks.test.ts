import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { expertRanks } from '../../../formats/artifact/expert-ranks.js';
import type { ArtifactManifest } from '../../../formats/artifact/schema.js';
import { sealManifest } from '../../../formats/artifact/seal.js';
import { createRuntime } from '../../../native/binding.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { lpq, root, scratch } from '../cli/lpq.js';

const mixture = path.join(root, 'test', 'fixtures', 'architectures', 'mixtral');

const ran = async (...args: string[]) => {
  const { code, stderr } = await lpq([...args, '--quiet']);
  assert.equal(code, 0, stderr);
};

test('experts are shared as vLLM places them: in order, the first ranks one more', () => {
  const names = Array.from({ length: 8 }, (_, i) => `model.layers.0.mlp.experts.${i}.up_proj.weight`);
  const ranks = (count: number) => names.map(expertRanks(names, count).rankOf);
  assert.deepEqual(ranks(3), [0, 0, 0, 1, 1, 1, 2, 2]);
  assert.deepEqual(ranks(8), [0, 1, 2, 3, 4, 5, 6, 7]);
  assert.equal(expertRanks(names, 2).rankOf('model.layers.0.mlp.shared_expert.up_proj.weight'), undefined);
  assert.equal(expertRanks(['model.layers.0.mlp.experts.up_proj'], 2).least, 0);
});

test('pack --ep: experts of a rank in files of its own, which verify proves', async (t) => {
  const dir = scratch(t);
  const [quantized, plain] = [path.join(dir, 'q'), path.join(dir, 'plain')];
  await ran(
    'quantize',
    mixture,
    '-o',
    quantized,
    '--bits',
    '4',
    '--group-size',
    '32',
    '--method',
    'rtn',
    '--no-report',
  );
  await ran('pack', quantized, '--target', 'compressed-tensors', '-o', plain);
  const runtime = createRuntime(1);
  const failures = async (packed: string) =>
    JSON.stringify((await verifyArtifact({ dir: packed, against: quantized, runtime })).failures);
  /** Another number of ranks in lpq.json, under a seal that fits. */
  const restated = (packed: string, ranks: number) => {
    const file = path.join(packed, 'lpq.json');
    const manifest = JSON.parse(readFileSync(file, 'utf8')) as ArtifactManifest;
    writeFileSync(file, sealManifest({ ...manifest, expertRanks: ranks }).text);
  };

  for (const target of ['compressed-tensors', 'tilus']) {
    const packed = path.join(dir, target);
    await ran('pack', quantized, '--target', target, '-o', packed, '--ep', '3');
    const index = readFileSync(path.join(packed, 'model.safetensors.index.json'), 'utf8');
    const map = Object.entries((JSON.parse(index) as { weight_map: Record<string, string> }).weight_map);
    const { rankOf } = expertRanks(
      map.map(([name]) => name),
      3,
    );
    const held = new Map<string, Set<number | undefined>>();
    for (const [name, file] of map) held.set(file, (held.get(file) ?? new Set()).add(rankOf(name)));
    assert.deepEqual(
      [...held].sort().map(([, ranks]) => [...ranks]),
      [[undefined], [0], [1], [2]],
    );
    assert.equal(await failures(packed), '[]');
    restated(packed, 4);
    assert.match(await failures(packed), /"rank 0: [^"]*, rank 1: .*holds tensors of several ranks/);
  }
  restated(plain, 2);
  assert.match(await failures(plain), /"all ranks: [^"]*, rank 0: [^"]*, rank 1: .*holds tensors of several ranks/);
});

test('--ep is refused where there is nothing to share', async (t) => {
  const dir = scratch(t);
  const [quantized, out] = [path.join(dir, 'q'), path.join(dir, 'out')];
  await ran(
    'quantize',
    mixture,
    '-o',
    quantized,
    '--bits',
    '4',
    '--group-size',
    '32',
    '--method',
    'rtn',
    '--no-report',
  );
  const refusals: readonly (readonly [args: readonly string[], RegExp])[] = [
    [['--target', 'gguf', '--ep', '2'], /--ep does not go with target gguf/],
    [['--target', 'tilus', '--ep', '2', '--tp', '2'], /--ep does not go with --tp/],
    [['--target', 'tilus', '--ep', '2', '--shard', '0/2'], /--shard does not go with --ep/],
    [['--target', 'tilus', '--ep', '1000'], /has fewer experts than ranks/],
    [['--target', 'tilus', '--ep', 'x'], /--ep is not a number of ranks/],
  ];
  for (const [args, message] of refusals) {
    const { code, stderr } = await lpq(['pack', quantized, '-o', out, ...args]);
    assert.deepEqual([code, message.test(stderr)], [2, true], stderr);
  }
});
