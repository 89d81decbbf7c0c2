// What a shard's header says of a tensor that stays in the very same bytes: another number, or another matrix.
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import type { ArtifactManifest } from '../../../formats/artifact/schema.js';
import { sealManifest } from '../../../formats/artifact/seal.js';
import { encodeHeader, type TensorEntry } from '../../../formats/safetensors/header.js';
import { SafetensorsFile } from '../../../formats/safetensors/read.js';
import { createRuntime } from '../../../native/binding.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { tensorHash } from '../../formats/safetensors/tensor-hash.js';
import { type Built, build } from './build.js';
import { group, type ModuleSpec, NONE } from './numbers.js';

const runtime = createRuntime(1);
const GPTQ: ModuleSpec = { type: 'i4', n: 16, k: 32, granularity: group(16), zeros: NONE, layout: 'gptq' };
const DENSE: ModuleSpec = { ...GPTQ, layout: 'dense' };
const CARRIED: ModuleSpec = { ...GPTQ, type: 'f6e3m2', layout: 'carried' };

type Edit = Partial<Pick<TensorEntry, 'dtype' | 'shape'>>;

/** Writes another header over the same data. */
function rewrite(dir: string, name: string, edit: Edit): void {
  const place = path.join(dir, 'model.safetensors');
  const file = SafetensorsFile.open(place);
  const entries = file.header.tensors.map((entry) => (entry.name === name ? { ...entry, ...edit } : entry));
  const data = readFileSync(place).subarray(file.header.dataStart);
  file.close();
  writeFileSync(place, Buffer.concat([encodeHeader(entries, { format: 'pt' }), data]));
}

/** Every hash that covers the tensor, of what the file now says. */
function rehash({ artifact }: Built, name: string): void {
  const place = path.join(artifact, 'lpq.json');
  const manifest = JSON.parse(readFileSync(place, 'utf8')) as ArtifactManifest;
  const file = SafetensorsFile.open(path.join(artifact, 'model.safetensors'));
  const tensor = file.tensor(name, file.dtype(name) === 'F16' ? 'u16' : undefined);
  const hash = tensorHash(file.spec(name), Uint8Array.from(tensor.bytes()));
  file.close();
  if (manifest.carried[name] !== undefined) manifest.carried[name] = hash;
  for (const { tensors, canonical } of Object.values(manifest.modules))
    if (tensors[name] !== undefined) {
      tensors[name] = hash;
      if (canonical.weight !== undefined) canonical.weight = hash;
    }
  writeFileSync(place, sealManifest(manifest).text);
}

const CASES: readonly [title: string, tensor: string, edit: Edit][] = [
  ['an embedding BF16 read as F16', 'embed_tokens.weight', { dtype: 'F16' }],
  ['a norm BF16 read as F16', 'norm.weight', { dtype: 'F16' }],
  ['a norm BF16 read as I16', 'norm.weight', { dtype: 'I16' }],
  ['an embedding transposed', 'embed_tokens.weight', { shape: [4, 6] }],
  ['an embedding flattened', 'embed_tokens.weight', { shape: [24] }],
  ['a norm with a dimension more', 'norm.weight', { shape: [3, 1] }],
  ['a plain weight F32 read as I32', 'd.weight', { dtype: 'I32' }],
  ['a plain weight transposed', 'd.weight', { shape: [32, 16] }],
  ['packed words I32 read as F32', 'm.qweight', { dtype: 'F32' }],
  ['packed words transposed', 'm.qweight', { shape: [16, 4] }],
  ['canonical codes flattened', 'c.codes', { shape: [384] }],
  ['canonical scales F16 read as BF16', 'c.scales', { dtype: 'BF16' }],
];

for (const [title, tensor, edit] of CASES)
  test(`a header that says something else of the same bytes is found: ${title}`, async () => {
    const built = await build(
      /^c\./.test(tensor) ? 'tilus' : 'gptq',
      /^c\./.test(tensor) ? { c: CARRIED } : { m: GPTQ, d: DENSE },
    );
    const failures = async (against: boolean) => {
      const report = await verifyArtifact({
        dir: built.artifact,
        against: against ? built.quantized : undefined,
        runtime,
        emulate: false,
      });
      return report.failures;
    };
    try {
      assert.deepEqual(await failures(true), []);
      rewrite(built.artifact, tensor, edit);
      const found = await failures(false);
      assert.ok(
        found.some(({ tensor: name, module }) => name === tensor || tensor.startsWith(`${module}.`)),
        'hashes untouched',
      );
      rehash(built, tensor);
      assert.notDeepEqual(await failures(true), [], 'every hash redone, with --against');
    } finally {
      built.remove();
    }
  });

test('the quantized checkpoint’s own carried tensors are held to name, dtype and shape', async () => {
  const { CanonicalCheckpoint } = await import('../../../formats/canonical/read.js');
  const built = await build('gptq', { m: GPTQ });
  try {
    rewrite(built.quantized, 'embed_tokens.weight', { shape: [4, 6] });
    const checkpoint = CanonicalCheckpoint.open(built.quantized);
    const mismatches = await checkpoint.verifyHashes();
    checkpoint.close();
    assert.deepEqual(
      mismatches.map(({ name }) => name),
      ['embed_tokens.weight'],
    );
  } finally {
    built.remove();
  }
});

test('a header that says the same not written as lpq writes it is found: an unknown field, spaces', async () => {
  for (const [from, to] of [
    ['"dtype":"BF16"', '"x":1,"dtype":"BF16"'],
    ['"shape":[3]', '"shape": [3]'],
  ] as const) {
    const built = await build('gptq', { m: GPTQ });
    try {
      const place = path.join(built.artifact, 'model.safetensors');
      const bytes = readFileSync(place);
      const end = 8 + Number(bytes.readBigUInt64LE(0));
      const text = bytes.subarray(8, end).toString().trimEnd().replace(from, to);
      const header = Buffer.from(text.padEnd(Math.ceil(text.length / 8) * 8));
      const length = Buffer.alloc(8);
      length.writeBigUInt64LE(BigInt(header.length));
      writeFileSync(place, Buffer.concat([length, header, bytes.subarray(end)]));
      const { failures } = await verifyArtifact({ dir: built.artifact, runtime });
      assert.deepEqual(
        failures.map(({ check }) => check),
        ['files'],
      );
      assert.match(failures[0]?.message ?? '', /not written as lpq writes it/);
    } finally {
      built.remove();
    }
  }
});
