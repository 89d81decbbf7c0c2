import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { cpSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { Artifact } from '../../../formats/artifact/read.js';
import { type ArtifactPlan, ArtifactWriter } from '../../../formats/artifact/write.js';
import { OutputDirectory } from '../../../formats/directory/output-directory.js';
import { provenance } from '../canonical/fixture.js';
import { tensorHash } from '../safetensors/tensor-hash.js';
import { designed, scratch } from '../scratch.js';

const root = scratch();
const zero = '0'.repeat(64);
const plan: ArtifactPlan = {
  target: 'marlin',
  modules: new Map([
    [
      'layers.0.q',
      {
        type: 'u4',
        shape: [2, 8],
        padded: [2, 8],
        granularity: { kind: 'channel' },
        scales: { dtype: 'f16', block: [1, 8], global: false },
        zeros: { kind: 'const', value: 8 },
        layout: 'marlin',
        notes: ['nothing to say'],
        canonical: { codes: zero, scales: zero },
        tensors: [
          { name: 'layers.0.q.packed', dtype: 'I32', shape: [2] },
          { name: 'layers.0.q.scales', dtype: 'F16', shape: [2] },
        ],
      },
    ],
  ]),
  carried: [{ name: 'norm', dtype: 'F32', shape: [1] }],
  config: JSON.stringify({ quantization_config: { quant_method: 'lpq' } }),
  card: { serve: ['serve DIR'], relativeError: null },
};

async function write(name: string): Promise<string> {
  const output = await OutputDirectory.create(path.join(root, name));
  await output.writeFile('tokenizer/t.json', '{}');
  const writer = await ArtifactWriter.create(output, plan);
  await writer.writeRows('layers.0.q.packed', 1, Int32Array.of(2));
  await writer.writeRows('layers.0.q.packed', 0, Int32Array.of(1));
  await writer.write('norm', Float32Array.of(1));
  await writer.write('layers.0.q.scales', Uint16Array.of(3, 4));
  await writer.finish(provenance);
  await output.commit();
  return output.target;
}

let made = '';
// A test of its own, not awaited as the file loads: where files share a process, the hooks of those before would run meanwhile.
test('one is written', async () => {
  made = await write('made');
});
let count = 0;
function copy(edit?: (manifest: Any) => void): string {
  const dir = path.join(root, `copy-${count++}`);
  cpSync(made, dir, { recursive: true });
  const file = path.join(dir, 'lpq.json');
  const manifest = JSON.parse(readFileSync(file, 'utf8'));
  edit?.(manifest);
  writeFileSync(file, JSON.stringify(manifest));
  return dir;
}
// biome-ignore lint/suspicious/noExplicitAny: manifests are broken on purpose
type Any = any;

test('round trip: tensors, hashes of tensors and files, the same bytes twice', async () => {
  const artifact = Artifact.open(made);
  assert.deepEqual(artifact.moduleNames(), ['layers.0.q']);
  assert.deepEqual([...artifact.tensor('layers.0.q.packed').bytes()], [1, 0, 0, 0, 2, 0, 0, 0]);
  const hash = (text: string | Uint8Array) => createHash('sha256').update(text).digest('hex');
  const of = (part: string, bytes: Uint8Array) => tensorHash(artifact.weights.spec(`layers.0.q.${part}`), bytes);
  assert.deepEqual(artifact.module('layers.0.q').tensors, {
    'layers.0.q.packed': of('packed', Uint8Array.of(1, 0, 0, 0, 2, 0, 0, 0)),
    'layers.0.q.scales': of('scales', Uint8Array.of(3, 0, 4, 0)),
  });
  assert.deepEqual(artifact.manifest.files, {
    'README.md': hash(readFileSync(path.join(made, 'README.md'))),
    'config.json': hash(readFileSync(path.join(made, 'config.json'))),
    'tokenizer/t.json': hash('{}'),
  });
  assert.deepEqual(await artifact.verifyTensors(), []);
  assert.deepEqual(await artifact.verifyFiles(), []);
  assert.throws(() => artifact.module('x'), designed('LPQ_TENSOR_MISSING', "'x'"));
  const again = await write('again');
  for (const file of ['README.md', 'lpq.json', 'model.safetensors', 'config.json'])
    assert.deepEqual(readFileSync(path.join(made, file)), readFileSync(path.join(again, file)));
});

test('every flipped byte of the data is found', async () => {
  const dir = copy();
  const file = path.join(dir, 'model.safetensors');
  const image = readFileSync(file);
  const { dataStart } = (Artifact.open(dir).weights.files[0] as { header: { dataStart: number } }).header;
  for (let at = dataStart; at < image.length; at++) {
    const bytes = Buffer.from(image);
    bytes[at] = (bytes[at] as number) ^ (1 << (at % 8));
    writeFileSync(file, bytes);
    const artifact = Artifact.open(dir);
    assert.equal((await artifact.verifyTensors()).length, 1, `byte ${at}`);
    artifact.close();
  }
});

test('changed, missing, unlisted and stray files are found', async () => {
  const dir = copy((m) => (m.files['../outside'] = zero));
  writeFileSync(path.join(dir, 'config.json'), '{}');
  rmSync(path.join(dir, 'tokenizer/t.json'));
  writeFileSync(path.join(dir, 'extra.py'), '');
  const found = await Artifact.open(dir).verifyFiles();
  assert.deepEqual(found.map(({ name }) => name).sort(), ['../outside', 'config.json', 'extra.py', 'tokenizer/t.json']);
  assert.equal(found.find(({ name }) => name === 'tokenizer/t.json')?.got, 'missing');
  assert.equal(found.find(({ name }) => name === 'extra.py')?.expected, 'not listed');
});

const BROKEN: [string, (m: Any) => void, RegExp][] = [
  ['another format', (m) => (m.format = 'lpq-canonical'), /malformed at \/format/],
  ['an unknown key', (m) => (m.modules['layers.0.q'].x = 1), /malformed at \/modules\/layers\.0\.q/],
  ['no canonical hash', (m) => delete m.modules['layers.0.q'].canonical.codes, /\/canonical\/codes/],
  ['a tensor that is nowhere', (m) => (m.carried.ghost = zero), /'ghost' of the carried tensors is not in the shards/],
  ['a tensor that is not listed', (m) => delete m.carried.norm, /'norm' is in the shards but not in lpq\.json/],
  [
    'a tensor listed twice',
    (m) => (m.modules['layers.0.q'].tensors.norm = zero),
    /'norm' under module 'layers\.0\.q' and under the carried/,
  ],
];
for (const [rule, edit, message] of BROKEN)
  test(`refused: ${rule}`, () => {
    assert.throws(() => Artifact.open(copy(edit)), designed('LPQ_ARTIFACT', message));
  });
