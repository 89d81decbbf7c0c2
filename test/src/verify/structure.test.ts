// Files, tensors and manifests that are not as they were written.
import assert from 'node:assert/strict';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { artifactSource } from '../../../src/artifact/open.js';
import { LpqError } from '../../../src/core/error.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { type Built, build } from './build.js';
import { CT, expectFailure, GPTQ, type Listed, runtime, testListed } from './changed.js';
import type { TensorOut } from './layouts.js';

const listed: readonly Listed[] = [
  [
    'a file that nobody listed',
    'files',
    /extra\.txt is in the directory/,
    { directory: ({ artifact }) => writeFileSync(path.join(artifact, 'extra.txt'), '') },
  ],
  [
    'a stray shard',
    'files',
    /other\.safetensors is in the directory/,
    { directory: ({ artifact }) => writeFileSync(path.join(artifact, 'other.safetensors'), '') },
  ],
  [
    'a missing file',
    'files',
    /tokenizer\.json is missing/,
    { directory: ({ artifact }) => rmSync(path.join(artifact, 'tokenizer.json')) },
  ],
  [
    'a stale index',
    'files',
    /index\.json does not match/,
    { directory: ({ artifact }) => writeFileSync(path.join(artifact, 'model.safetensors.index.json'), '{') },
  ],
  [
    'a changed manifest',
    'manifest',
    /seal/,
    {
      directory: ({ artifact }) => {
        const f = path.join(artifact, 'lpq.json');
        writeFileSync(f, readFileSync(f, 'utf8').replace('"notes": []', '"notes": ["x"]'));
      },
    },
  ],
  [
    'a tensor listed twice',
    'tensors',
    /under module 'm' and under the carried/,
    {
      manifest: (m) => {
        m.carried['m.qweight'] = m.modules.m!.tensors['m.qweight']!;
      },
    },
  ],
  [
    'an unlisted tensor',
    'tensors',
    /'norm\.weight' is in the shards but not/,
    {
      manifest: (m) => {
        delete m.carried['norm.weight'];
      },
    },
  ],
  [
    'a carried tensor that is missing',
    'carried',
    /'gone' is not in the shards/,
    {
      manifest: (m) => {
        m.carried.gone = m.carried['norm.weight']!;
      },
    },
  ],
  [
    'a packed tensor without a hash',
    'tensors',
    /has no hash/,
    {
      manifest: (m) => {
        delete m.modules.m!.tensors['m.g_idx'];
      },
    },
  ],
  [
    'a wrong hash',
    'tensors',
    /have changed since they were packed/,
    {
      manifest: (m) => {
        m.modules.m!.tensors['m.g_idx'] = '0'.repeat(64);
      },
    },
  ],
  [
    'a wrong canonical hash',
    'canonical',
    /the scales in its packed bytes/,
    {
      manifest: (m) => {
        m.modules.m!.canonical.scales = '0'.repeat(64);
      },
    },
  ],
  [
    'a canonical part that the layout lacks',
    'tensors',
    /no permutation/,
    {
      manifest: (m) => {
        m.modules.m!.canonical.permutation = '0'.repeat(64);
      },
    },
  ],
  [
    'another shape',
    'tensors',
    /another dtype or shape/,
    {
      manifest: (m) => {
        m.modules.m!.shape = [16, 64];
        m.modules.m!.padded = [16, 64];
      },
    },
  ],
  [
    'an unknown type',
    'tensors',
    /'q4' is not a quantized type/,
    {
      manifest: (m) => {
        m.modules.m!.type = 'q4';
      },
    },
  ],
  [
    'an unknown layout',
    'tensors',
    /'gptr' is not a layout/,
    {
      manifest: (m) => {
        m.modules.m!.layout = 'gptr';
      },
    },
  ],
  [
    'a padded shape where none is',
    'tensors',
    /padded shape/,
    {
      manifest: (m) => {
        m.modules.m!.padded = [16, 33];
      },
    },
  ],
  [
    'a float type in gptq',
    'tensors',
    /holds integers/,
    {
      manifest: (m) => {
        m.modules.m!.type = 'f4e2m1';
      },
    },
  ],
  [
    'groups that marlin lacks',
    'tensors',
    /no groups of 16/,
    {
      manifest: (m) => {
        m.modules.m!.layout = 'marlin';
      },
    },
  ],
  [
    'a module that was lost',
    'against',
    /module 'b' of .* is not in the artifact/,
    {
      specs: { m: GPTQ, b: GPTQ },
      against: true,
      manifest: (m) => {
        delete m.modules.b;
      },
    },
  ],
  [
    'another provenance',
    'against',
    /provenance/,
    {
      against: true,
      manifest: (m) => {
        m.provenance.method = 'gptq';
      },
    },
  ],
  [
    'another config',
    'against',
    /beyond quantization_config/,
    {
      against: true,
      config: (c) => {
        c.hidden_size = 9;
      },
    },
  ],
  [
    'another granularity in the manifest',
    'against',
    /its zeros are not/,
    {
      against: true,
      manifest: (m) => {
        m.modules.m!.zeros = { kind: 'const', value: 0 };
      },
    },
  ],
  [
    'a file that was lost',
    'against',
    /tokenizer\.json of the quantized checkpoint is missing/,
    {
      against: true,
      manifest: (m) => {
        delete m.files['tokenizer.json'];
      },
      directory: ({ artifact }) => rmSync(path.join(artifact, 'tokenizer.json')),
    },
  ],
];

testListed(listed);

const ints = (tensor: TensorOut) => new Int32Array(tensor.data.buffer as ArrayBuffer);
const tensorOf = (tensors: TensorOut[], suffix: string) => tensors.find(({ name }) => name.endsWith(suffix))!;

test('g_idx must be k div g unless the quantized checkpoint has one', async () => {
  const found = await expectFailure('padding', /wrong group/, {
    tensors: (t) => {
      ints(tensorOf(t, 'g_idx'))[20] = 0;
    },
  });
  assert.deepEqual([found.column, found.got, found.expected], [20, 0, 1]);
});

test('symmetric qzeros must all be the middle', async () => {
  const found = await expectFailure('padding', /zero point is not/, {
    tensors: (t) => {
      ints(tensorOf(t, 'qzeros'))[3]! ^= 1 << 4;
    },
  });
  // group 1, word 1, nibble 1: output feature 9; stored 7 became 6, which is 7 - 8 as a signed zero
  assert.deepEqual([found.row, found.column, found.got, found.expected], [9, 1, -1, 0]);
});

test('weight_shape must be the module’s', async () => {
  const found = await expectFailure('padding', /stored shape/, {
    target: 'compressed-tensors',
    specs: { m: CT },
    tensors: (t) => {
      new BigInt64Array(tensorOf(t, 'weight_shape').data.buffer as ArrayBuffer)[1] = 31n;
    },
  });
  assert.deepEqual([found.got, found.expected], [31, 32]);
});

test('what cannot be read at all is a designed error with exit code 4', async () => {
  const refuse = async (code: string, change: (built: Built) => void, against = false) => {
    const built = await build('gptq', { m: GPTQ });
    change(built);
    const options = { dir: built.artifact, against: against ? built.quantized : undefined, runtime };
    await assert.rejects(verifyArtifact(options), (error: LpqError) => {
      assert.ok(error instanceof LpqError);
      assert.deepEqual([error.code, error.exitCode], [code, 4]);
      return true;
    });
    built.remove();
  };
  const file = (built: Built, name: string) => path.join(built.artifact, name);
  await refuse('LPQ_ARTIFACT', (b) => writeFileSync(file(b, 'lpq.json'), '{"format":"lpq-artifact"'));
  await refuse('LPQ_ARTIFACT', (b) => writeFileSync(file(b, 'lpq.json'), '{"format":"lpq-artifact","version":2}'));
  await refuse('LPQ_CONFIG', (b) => rmSync(file(b, 'config.json')));
  await refuse('LPQ_FILE', (b) => rmSync(file(b, 'model.safetensors')));
  await refuse('LPQ_SAFETENSORS', (b) =>
    writeFileSync(file(b, 'model.safetensors'), readFileSync(file(b, 'model.safetensors')).subarray(0, -1)),
  );
  await refuse('LPQ_CANONICAL', (b) => writeFileSync(path.join(b.quantized, 'lpq.json'), '{}'), true);
});

test('a weight source refuses wrong padding, wrong shapes and unknown names', async () => {
  const built = await build(
    'gptq',
    { m: GPTQ },
    {
      change: (t) => {
        ints(tensorOf(t, 'g_idx'))[20] = 7;
      },
    },
  );
  const source = artifactSource(built.artifact, runtime);
  await assert.rejects(source.tensor('m.weight'), { code: 'LPQ_VERIFY' });
  await assert.rejects(source.tensor('nothing'), { code: 'LPQ_TENSOR_MISSING' });
  source.manifest.modules.m!.shape = [16, 64];
  source.manifest.modules.m!.padded = [16, 64];
  await assert.rejects(source.tensor('m.weight'), { code: 'LPQ_ARTIFACT' });
  source.close();
  built.remove();
});
