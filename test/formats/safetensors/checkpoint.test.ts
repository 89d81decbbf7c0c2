import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import {
  closeSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  readFileSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { Checkpoint, readConfig } from '../../../formats/safetensors/checkpoint.js';
import { SafetensorsFile } from '../../../formats/safetensors/read.js';
import { typed } from '../../../native/binding.js';
import { ARCHITECTURES, GOLDENS } from '../../src/model/fixtures.js';
import { designed, handmade, scratch } from '../scratch.js';

const root = scratch();
let count = 0;

const u8 = (name: string, value: number) => ({
  header: `{"${name}":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`,
  data: Uint8Array.of(value),
});

function sharded(index: unknown, shards: Record<string, { header: string; data: Uint8Array }>): string {
  const dir = path.join(root, String(count++));
  mkdirSync(dir);
  for (const [file, { header, data }] of Object.entries(shards)) handmade(path.join(dir, file), header, data);
  writeFileSync(
    path.join(dir, 'model.safetensors.index.json'),
    typeof index === 'string' ? index : JSON.stringify(index),
  );
  return dir;
}

const two = { 'one.safetensors': u8('a', 1), 'two.safetensors': u8('b', 2) };
const good = { metadata: { total_size: 2.0 }, weight_map: { a: 'one.safetensors', b: 'two.safetensors' } };

test('a sharded checkpoint reads as one', () => {
  const checkpoint = Checkpoint.open(sharded(good, two));
  assert.deepEqual([...checkpoint.names()], ['a', 'b']);
  assert.equal(checkpoint.tensor('b').bytes()[0], 2);
  assert.equal(checkpoint.fileOf('b').path.endsWith('two.safetensors'), true);
  assert.throws(() => checkpoint.shape('c'), designed('LPQ_TENSOR_MISSING', "'c'"));
});

const map = (weight_map: unknown) => ({ weight_map });
const BROKEN: [string, unknown, typeof two | Record<string, ReturnType<typeof u8>>, RegExp][] = [
  ['no JSON', '{', two, /not valid JSON/],
  ['no object', '[]', two, /no weight_map/],
  ['no weight_map', {}, two, /no weight_map/],
  ['an empty weight_map', map({}), two, /no weight_map/],
  [
    'a tensor twice in the index',
    '{"weight_map":{"a":"one.safetensors","a":"two.safetensors"}}',
    two,
    /"a" appears twice/,
  ],
  ['a shard that is no string', map({ a: 1 }), two, /'a' is not a string/],
  [
    'a shard that is not there',
    map({ a: 'one.safetensors', b: 'three.safetensors' }),
    two,
    /missing shards \| got three/,
  ],
  [
    'a tensor that is nowhere',
    map({ a: 'one.safetensors', c: 'one.safetensors' }),
    two,
    /'c' in one.safetensors, which does not hold it/,
  ],
  [
    'a tensor that the index leaves out',
    map({ a: 'one.safetensors', b: 'two.safetensors' }),
    {
      ...two,
      'two.safetensors': {
        header:
          '{"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"c":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
        data: Uint8Array.of(2, 3),
      },
    },
    /leaves out tensor 'c', which two.safetensors holds/,
  ],
  ['a tensor in another shard', map({ a: 'two.safetensors', b: 'one.safetensors' }), two, /'a' in two.* it is in one/],
  [
    'a tensor in two shards',
    map({ a: 'one.safetensors', b: 'two.safetensors' }),
    { ...two, 'two.safetensors': u8('a', 3) },
    /'a' is in two shards/,
  ],
  ...[
    '../one.safetensors',
    '..',
    '/etc/passwd',
    'sub/one.safetensors',
    'a\\one.safetensors',
    'one\0.safetensors',
    'one.bin',
    '',
    '..safetensors',
    'C:one.safetensors',
  ].map(
    (shard) =>
      [
        `the shard name ${JSON.stringify(shard)}`,
        map({ a: shard }),
        two,
        /not the name of a .safetensors file beside/,
      ] as [string, unknown, typeof two, RegExp],
  ),
];
for (const [rule, index, shards, message] of BROKEN)
  test(`refused: ${rule}`, () => {
    assert.throws(() => Checkpoint.open(sharded(index, shards)), designed('LPQ_SAFETENSORS_INDEX', message));
  });

test('refused: a truncated shard, named', () => {
  const dir = sharded(good, two);
  truncateSync(path.join(dir, 'two.safetensors'), 8 + two['two.safetensors'].header.length);
  assert.throws(
    () => Checkpoint.open(dir),
    designed('LPQ_SAFETENSORS', /two\.safetensors ends before its last tensor/),
  );
});

test('refused: a directory without weights, with pickles only, with files and no index, or no directory', () => {
  const dir = path.join(root, 'bare');
  mkdirSync(dir);
  assert.throws(() => Checkpoint.open(dir), designed('LPQ_FILE', /no safetensors checkpoint \| got none/));
  writeFileSync(path.join(dir, 'pytorch_model.bin'), '');
  assert.throws(() => Checkpoint.open(dir), designed('LPQ_FILE', /pickled weights only .* never unpickles/));
  handmade(path.join(dir, 'gptq_model-4bit.safetensors'), two['one.safetensors'].header, Uint8Array.of(1));
  assert.deepEqual([...Checkpoint.open(dir).names()], ['a']);
  handmade(path.join(dir, 'other.safetensors'), '{}');
  assert.throws(() => Checkpoint.open(dir), designed('LPQ_FILE', /2 .safetensors files and no index/));
  assert.throws(() => Checkpoint.open(path.join(root, 'nowhere')), designed('LPQ_FILE', /does not exist/));
});

test('shards may be links, as in a Hugging Face cache', () => {
  const dir = sharded(good, { 'one.safetensors': u8('a', 1) });
  handmade(path.join(root, 'blob'), u8('b', 2).header, Uint8Array.of(2));
  symlinkSync(path.join(root, 'blob'), path.join(dir, 'two.safetensors'));
  assert.equal(Checkpoint.open(dir).tensor('b').bytes()[0], 2);
});

test('the fingerprint is sha256 over config.json, the headers and a sample of the weights', () => {
  const dir = sharded(good, two);
  assert.throws(() => Checkpoint.open(dir).fingerprint(), designed('LPQ_CONFIG', 'config.json'));
  writeFileSync(path.join(dir, 'config.json'), '{"é":1}');
  const heads = ['one', 'two'].map((name) => readFileSync(path.join(dir, `${name}.safetensors`)).subarray(0, -1));
  const expected = createHash('sha256')
    .update(Buffer.concat([Buffer.from('{"é":1}'), ...heads, Uint8Array.of(1, 2)]))
    .digest('hex');
  assert.equal(Checkpoint.open(dir).fingerprint(), expected);
  handmade(path.join(dir, 'two.safetensors'), two['two.safetensors'].header, Uint8Array.of(9));
  assert.notEqual(Checkpoint.open(dir).fingerprint(), expected);
});

test('config.json: absent, broken, no object', () => {
  const dir = sharded(good, two);
  for (const [text, message] of [
    ['{', /not valid JSON/],
    ['[]', /does not hold an object/],
  ] as const) {
    writeFileSync(path.join(dir, 'config.json'), text);
    assert.throws(() => readConfig(dir), designed('LPQ_CONFIG', message));
  }
});

test('files above 4 GiB: offsets are exact on both sides of 2^32', () => {
  const gib = 2 ** 30;
  const file = path.join(root, 'large.safetensors');
  const header =
    `{"big":{"dtype":"BF16","shape":[5,${gib / 2}],"data_offsets":[0,${5 * gib}]},` +
    `"last":{"dtype":"F32","shape":[2],"data_offsets":[${5 * gib},${5 * gib + 8}]}}`;
  const padded = header.padEnd(Math.ceil(header.length / 8) * 8);
  handmade(file, padded);
  const fd = openSync(file, 'r+');
  const start = 8 + padded.length;
  ftruncateSync(fd, start + 5 * gib + 8); // sparse: takes no room
  writeSync(fd, Uint8Array.of(0xcd, 0xab), 0, 2, start + 4 * gib + 2);
  writeSync(fd, new Uint8Array(new Float32Array([7, -7]).buffer), 0, 8, start + 5 * gib);
  closeSync(fd);
  const opened = SafetensorsFile.open(file);
  assert.deepEqual([...typed(opened.tensor('last'))], [7, -7]);
  const big = opened.tensor('big');
  assert.equal(big.byteLength, 5 * gib);
  assert.deepEqual([...typed<Uint16Array>(big.view([2], 2 * gib))], [0, 0xabcd]);
  assert.deepEqual([...big.bytes(4 * gib, 4)], [0, 0, 0xcd, 0xab]);
});

test('checkpoints of the reference writer open', () => {
  for (const name of GOLDENS) {
    const checkpoint = Checkpoint.open(path.join(ARCHITECTURES, name));
    assert.ok([...checkpoint.names()].length > 10);
    assert.match(checkpoint.fingerprint(), /^[0-9a-f]{64}$/);
  }
});
