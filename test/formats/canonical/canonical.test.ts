import assert from 'node:assert/strict';
import { cpSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { compareNatural } from '../../../formats/canonical/order.js';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { CanonicalSource, directoryKind, openSource, SourceCheckpoint } from '../../../formats/canonical/source.js';
import { CanonicalWriter } from '../../../formats/canonical/write.js';
import { OutputDirectory } from '../../../formats/directory/output-directory.js';
import type { Checkpoint } from '../../../formats/safetensors/checkpoint.js';
import { bytesOf } from '../../../formats/safetensors/hash.js';
import { writeSafetensors } from '../../../formats/safetensors/write.js';
import { addon, createRuntime, typed } from '../../../native/binding.js';
import { tensorHash } from '../safetensors/tensor-hash.js';
import { designed, scratch } from '../scratch.js';
import { CARRIED, MODULES, makeModule, plan, provenance, writeFixture } from './fixture.js';

const root = scratch();
const fixture = await writeFixture(root, 'fixture');
let count = 0;
/** A copy of the fixture with its manifest changed. */
function changed(edit: (manifest: Record<string, never>) => void): string {
  const dir = path.join(root, `changed-${count++}`);
  cpSync(fixture, dir, { recursive: true });
  const file = path.join(dir, 'lpq.json');
  const manifest = JSON.parse(readFileSync(file, 'utf8'));
  edit(manifest);
  writeFileSync(file, JSON.stringify(manifest));
  return dir;
}

test('what was written reads back, with hashes, quality and carried tensors', async () => {
  const checkpoint = CanonicalCheckpoint.open(fixture);
  assert.deepEqual(checkpoint.moduleNames(), [...MODULES.keys()].sort(compareNatural));
  for (const [name, { declaration, data }] of MODULES) {
    const { sha256, quality, ...rest } = checkpoint.module(name);
    assert.deepEqual(rest, declaration);
    assert.equal(quality?.bitsPerWeight, 4.5);
    assert.deepEqual(Object.keys(sha256).sort(), Object.keys(data).sort());
    for (const [part, value] of Object.entries(data)) {
      const bytes = bytesOf(value, 0, value.byteLength);
      assert.equal(sha256[part], tensorHash(checkpoint.weights.spec(`${name}.${part}`), bytes));
      assert.deepEqual(Buffer.from(checkpoint.require(name, part as 'codes').bytes()), Buffer.from(bytes));
    }
    assert.equal(checkpoint.globalScale(name), declaration.scales.global ? 0.5 : 1);
  }
  assert.equal(checkpoint.part('m.eight', 'zeros'), undefined);
  assert.throws(() => checkpoint.require('m.eight', 'zeros'), designed('LPQ_CANONICAL', "'m.eight' has no zeros"));
  assert.throws(() => checkpoint.module('toString'), designed('LPQ_TENSOR_MISSING', 'toString'));
  assert.deepEqual(await checkpoint.verifyHashes(), []);
  assert.deepEqual(checkpoint.config.quantization_config, {
    quant_method: 'lpq',
    format: 'lpq-canonical',
    version: 1,
    manifest: 'lpq.json',
    types: ['f4e2m1', 'f6e3m2', 'i5', 'i8', 'u2', 'u3', 'u4'],
  });
  assert.equal(checkpoint.config.model_type, 'llama');
});

test('the bytes do not depend on the order of writing', async () => {
  const sharded = { maxShardBytes: 400 };
  const a = await writeFixture(root, 'a', sharded);
  const b = await writeFixture(root, 'b', { ...sharded, reversed: true });
  assert.ok(readdirSync(a).length > 4);
  assert.deepEqual(readdirSync(a), readdirSync(b));
  for (const file of readdirSync(a))
    assert.deepEqual(readFileSync(path.join(a, file)), readFileSync(path.join(b, file)), file);
});

test('rows of a module, written apart', async () => {
  const made = makeModule({ type: 'u3', n: 8, k: 16, group: 16, zeros: { kind: 'const', value: 4 } });
  const output = await OutputDirectory.create(path.join(root, 'rows'));
  const writer = await CanonicalWriter.create(output, {
    modules: new Map([['w', made.declaration]]),
    carried: [],
    config: '{}',
  });
  for (const first of [4, 0]) {
    await writer.writeModuleRows(
      'w',
      'codes',
      first,
      (made.data.codes as Uint8Array).subarray(first * 6, (first + 4) * 6),
    );
    await writer.writeModuleRows('w', 'scales', first, (made.data.scales as Float32Array).subarray(first, first + 4));
  }
  writer.setQuality('w', { method: 'rtn', bitsPerWeight: 4, relativeError: 0.1, damp: 0.01, seconds: 1, note: 'x' });
  await writer.finish(provenance);
  await output.commit();
  const checkpoint = CanonicalCheckpoint.open(output.target);
  assert.deepEqual(await checkpoint.verifyHashes(), []);
  assert.deepEqual(Buffer.from(checkpoint.require('w', 'codes').bytes()), Buffer.from(made.data.codes as Uint8Array));
});

test('a flipped bit is found, by module and tensor', async () => {
  const dir = changed(() => {});
  const file = path.join(dir, 'model.safetensors');
  const codes = CanonicalCheckpoint.open(dir).weights as Checkpoint;
  const { begin } = codes.spec('m.sparse.codes');
  const at = codes.fileOf('m.sparse.codes').header.dataStart + begin;
  const bytes = readFileSync(file);
  bytes[at] = (bytes[at] as number) ^ 16;
  writeFileSync(file, bytes);
  const found = await CanonicalCheckpoint.open(dir).verifyHashes();
  assert.deepEqual(
    found.map(({ module, name }) => [module, name]),
    [['m.sparse', 'm.sparse.codes']],
  );
});

// biome-ignore lint/suspicious/noExplicitAny: manifests are broken on purpose
type Any = any;
const BROKEN: [string, (m: Any) => void, RegExp][] = [
  ['another format', (m) => (m.format = 'x'), /malformed at \/format/],
  ['another version', (m) => (m.version = 2), /malformed at \/version.*got 2/],
  ['an unknown key', (m) => (m.extra = 1), /malformed at .*extra/],
  ['no modules', (m) => delete m.modules, /malformed at \/modules/],
  ['a shape of one', (m) => (m.modules['m.eight'].shape = [4]), /malformed at \/modules\/m\.eight\/shape/],
  ['a fractional shape', (m) => (m.modules['m.eight'].shape = [4, 2.5]), /\/modules\/m\.eight\/shape\[1\].*got 2\.5/],
  ['an unknown type', (m) => (m.modules['m.eight'].type = 'u9'), /\/modules\/m\.eight\/type: 'u9' is not/],
  [
    'groups that do not divide',
    (m) => (m.modules['m.sparse'].granularity.size = 5),
    /\/granularity\/size: it does not divide K = 16/,
  ],
  [
    'blocks that do not divide',
    (m) => (m.modules['m.sparse'].scales.block = [1, 3]),
    /\/scales\/block: \[1, 3\] does not divide/,
  ],
  ['blocks and groups at odds', (m) => (m.modules['m.sparse'].scales.block = [1, 4]), /blocks of 4 make 4 groups/],
  ['a hash that is none', (m) => (m.modules['m.eight'].sha256.codes = 'xyz'), /\/modules\/m\.eight\/sha256\/codes/],
  ['no hash', (m) => delete m.modules['m.eight'].sha256.codes, /\/sha256\/codes: no hash/],
  ['a hash of nothing', (m) => (m.modules['m.eight'].sha256.zeros = '0'.repeat(64)), /\/sha256\/zeros: no such tensor/],
  [
    'a scale dtype that is not the file’s',
    (m) => (m.modules['m.eight'].scales.dtype = 'f16'),
    /'m\.eight\.scales' does not match lpq\.json.*got F32 \[4,1\] \| expected F16/,
  ],
  ['a shape that is not the file’s', (m) => (m.modules['m.eight'].shape = [5, 20]), /'m\.eight\.codes' does not match/],
  [
    'a module that is not in the shards',
    (m) => (m.modules.ghost = m.modules['m.eight']),
    /'ghost\.codes' of module 'ghost' is not in the shards/,
  ],
  ['a carried tensor that is not', (m) => (m.carried.ghost = '0'.repeat(64)), /carried tensor 'ghost'/],
  [
    'a carried tensor that is forgotten',
    (m) => delete m.carried[Object.keys(m.carried)[0] as string],
    /in the shards but not in lpq\.json/,
  ],
  [
    'a tensor both ways',
    (m) => (m.carried['m.eight.codes'] = '0'.repeat(64)),
    /'m\.eight\.codes' is listed as carried and/,
  ],
  ['no provenance', (m) => delete m.provenance.source.fingerprint, /\/provenance\/source\/fingerprint/],
];
for (const [rule, edit, message] of BROKEN)
  test(`refused: ${rule}`, () => {
    assert.throws(() => CanonicalCheckpoint.open(changed(edit)), designed('LPQ_CANONICAL', message));
  });

test('refused: lpq.json absent or no JSON', () => {
  const dir = changed(() => {});
  writeFileSync(path.join(dir, 'lpq.json'), '{');
  assert.throws(() => CanonicalCheckpoint.open(dir), designed('LPQ_CANONICAL', /lpq\.json cannot be read/));
  assert.throws(() => CanonicalCheckpoint.open(root), designed('LPQ_CANONICAL', /lpq\.json cannot be read/));
});

test('refused: indices that native code must not see', async () => {
  for (const [part, value, message] of [
    ['g_idx', [...Array(11).fill(0), 3], /'w\.g_idx' holds an index outside 0 to 2 .* got 3 at \[11\]/],
    ['g_idx', [-1, ...Array(11).fill(0)], /outside 0 to 2/],
    ['permutation', [...Array(12).keys()].map((i) => (i === 5 ? 4 : i)), /'w\.permutation' holds an index twice/],
  ] as const) {
    const made = makeModule({ type: 'u4', n: 1, k: 12, group: 4, zeros: { kind: 'none' }, extras: [part] });
    const output = await OutputDirectory.create(path.join(root, `indices-${count++}`));
    const writer = await CanonicalWriter.create(output, {
      modules: new Map([['w', made.declaration]]),
      carried: [],
      config: '{}',
    });
    await writer.writeModule('w', { ...made.data, [part]: Int32Array.from(value) });
    await writer.finish(provenance);
    await output.commit();
    assert.throws(() => CanonicalCheckpoint.open(output.target).part('w', part), designed('LPQ_CANONICAL', message));
  }
});

test('refused: a mask of which more than two of four stay, or that goes on behind the row', async () => {
  for (const [bytes, message] of [
    [[0x33, 0x03, 0x53, 0x0b], /'w\.mask' is not a 2:4 mask .* got row 1, input features 8 to 11: more than two stay/],
    [[0x33, 0xf3, 0x33, 0x03], /got row 0, bits after its last column are set/],
    [[0x73, 0x03, 0x33, 0x03], /got row 0, input features 4 to 7/],
  ] as const) {
    const made = makeModule({ type: 'u4', n: 2, k: 12, zeros: { kind: 'none' }, extras: ['mask'] });
    const output = await OutputDirectory.create(path.join(root, `mask-${count++}`));
    const modules = new Map([['w', made.declaration]]);
    const writer = await CanonicalWriter.create(output, { modules, carried: [], config: '{}' });
    await writer.writeModule('w', { ...made.data, mask: Uint8Array.from(bytes) });
    await writer.finish(provenance);
    await output.commit();
    assert.throws(() => CanonicalCheckpoint.open(output.target).part('w', 'mask'), designed('LPQ_CANONICAL', message));
  }
});

test('misuse of the writer is named', async () => {
  const made = makeModule({ type: 'u4', n: 2, k: 8, zeros: { kind: 'int', dtype: 'u8' } });
  const create = async (declaration = made.declaration) => {
    const output = await OutputDirectory.create(path.join(root, `misuse-${count++}`));
    return CanonicalWriter.create(output, { modules: new Map([['w', declaration]]), carried: [], config: '{}' });
  };
  const { zeros: _, ...lacking } = made.data;
  await assert.rejects((await create()).writeModule('w', lacking), designed('LPQ_INTERNAL', /'w' lacks zeros/));
  await assert.rejects(
    (await create()).writeModule('w', { ...made.data, mask: new Uint8Array(1) }),
    designed('LPQ_INTERNAL', /declares no mask/),
  );
  await assert.rejects((await create()).writeModule('v', made.data), designed('LPQ_INTERNAL', /'v' was not declared/));
  await assert.rejects(
    (await create()).finish(provenance),
    designed('LPQ_INTERNAL', /'w\.\w+' cannot be written: only 0 of its/),
  );
  const bad = { ...made.declaration, granularity: { kind: 'group', size: 3 } } as const;
  await assert.rejects(create(bad), designed('LPQ_INTERNAL', /'w': granularity\.size: it does not divide K = 8/));
  const e8m0 = { ...made.declaration, scales: { ...made.declaration.scales, dtype: 'f8_e8m0' } } as const;
  const writer = await create(e8m0);
  await writer.writeModule('w', { ...made.data, scales: Uint8Array.of(127, 128) });
  await writer.finish(provenance);
  await writer.output.commit();
  const read = CanonicalCheckpoint.open(writer.output.target);
  assert.equal(read.weights.dtype('w.scales'), 'U8');
  assert.equal(read.require('w', 'scales').dtype, 'f8_e8m0');
});

test('natural order', () => {
  const names = ['a.10.x', 'a.9.x', 'a.9', 'a.b', 'a.009', 'b', 'a'];
  assert.deepEqual([...names].sort(compareNatural), ['a', 'a.009', 'a.9', 'a.9.x', 'a.10.x', 'a.b', 'b']);
});

test('what a directory is', async () => {
  assert.equal(directoryKind(fixture), 'lpq-canonical');
  const plain = path.join(root, 'plain');
  mkdirSync(plain);
  await writeSafetensors(path.join(plain, 'model.safetensors'), [
    ...CARRIED,
    { name: 'f8', dtype: 'F8_E4M3', shape: [1], data: Uint8Array.of(1) },
  ]);
  writeFileSync(path.join(plain, 'config.json'), '{"model_type":"llama"}');
  assert.equal(directoryKind(plain), 'source');
  const source = openSource(plain);
  assert.ok(source instanceof SourceCheckpoint);
  assert.equal(source.config.model_type, 'llama');
  assert.deepEqual([...typed(await source.tensor('model.norm.weight'))], [Math.fround(0.1), -3]);
  assert.equal((await source.tensor('model.embed_tokens.weight')).dtype, 'bf16');
  await assert.rejects(source.tensor('f8'), designed('LPQ_DTYPE', /'f8'.*got F8_E4M3/));
  await assert.rejects(source.tensor('nope'), designed('LPQ_TENSOR_MISSING', /'nope'/));
  writeFileSync(path.join(plain, 'config.json'), '{"quantization_config":{"quant_method":"awq"}}');
  assert.throws(() => openSource(plain), designed('LPQ_CONFIG', /'bits' cannot be used.*got nothing/));
  writeFileSync(path.join(plain, 'config.json'), '{"quantization_config":{"quant_method":"bitsandbytes"}}');
  assert.throws(() => openSource(plain), designed('LPQ_CONFIG', /already quantized.*got bitsandbytes/));
  writeFileSync(path.join(plain, 'lpq.json'), '{"format":"lpq-artifact"}');
  assert.throws(() => openSource(plain), designed('LPQ_CANONICAL', /packed artifact/));
  writeFileSync(path.join(plain, 'lpq.json'), '{"format":"other"}');
  assert.throws(() => openSource(plain), designed('LPQ_CANONICAL', /malformed at \/format.*got "other"/));
  assert.throws(() => openSource(path.join(root, 'nowhere')), designed('LPQ_FILE', /nowhere does not exist/));
});

const operations = addon().operations();
const native = operations.includes('unpack_codes') && operations.includes('dequantize');
test('modules dequantize to exactly what the definition says', {
  skip: native ? false : 'the addon has no dequantize',
}, async () => {
  const source = openSource(fixture, createRuntime(1));
  assert.ok(source instanceof CanonicalSource);
  assert.deepEqual([...source.names()].length, plan.modules.size + CARRIED.length);
  for (const [name, { weight, declaration }] of MODULES) {
    assert.ok(source.has(`${name}.weight`));
    assert.deepEqual(source.shape(`${name}.weight`), declaration.shape);
    const tensor = await source.tensor(`${name}.weight`);
    assert.equal(tensor.dtype, 'f32');
    const got = [...typed(tensor)];
    assert.deepEqual(
      got.map((x) => x + 0),
      weight.map((x) => x + 0),
      name,
    );
  }
  assert.equal((await source.tensor('model.embed_tokens.weight')).dtype, 'bf16');
  assert.equal(source.has('m.eight.bias'), false);
});
