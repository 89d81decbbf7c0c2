import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { compareUtf8 } from '../../../formats/safetensors/header.js';
import { SafetensorsFile } from '../../../formats/safetensors/read.js';
import { JsonNumber, parseStrictJson, type StrictJson } from '../../../formats/safetensors/strict-json.js';
import { typed } from '../../../native/binding.js';
import { designed, handmade, scratch } from '../scratch.js';

const dir = scratch();
const open = (header: string | Buffer, bytes = 0) =>
  SafetensorsFile.open(handmade(path.join(dir, 'x.safetensors'), header, new Uint8Array(bytes)));
const one = (entry: string) => `{"w":${entry}}`;
const entry = (dtype: string, shape: string, begin: number | string, end: number | string) =>
  `{"dtype":${dtype},"shape":${shape},"data_offsets":[${begin},${end}]}`;

// rule, header, bytes of data, what the error must say
const BROKEN: [string, string | Buffer, number, RegExp][] = [
  ['an empty header', '', 0, /begin with '\{'/],
  ['leading space', ' {}', 0, /begin with '\{'/],
  ['NUL padding', '{}\0\0\0\0\0\0', 0, /a NUL byte follows the value/],
  ['rubbish behind the object', '{}x', 0, /"x" follows the value/],
  ['no UTF-8', Buffer.from([0x7b, 0x22, 0xff, 0x22, 0x7d]), 0, /not UTF-8/],
  ['no JSON', '{"w":', 0, /not valid JSON/],
  ['a trailing comma', '{"__metadata__":{},}', 0, /a key in quotes/],
  ['a control character in a name', '{"a\nb":1}', 0, /control character/],
  ['half a surrogate pair', '{"\\ud800":1}', 0, /surrogate/],
  ['a broken escape', '{"\\x":1}', 0, /broken escape/],
  ['deep nesting', `{"w":${'['.repeat(200)}`, 0, /nested deeper/],
  [
    'a tensor name twice',
    `{"w":${entry('"U8"', '[1]', 0, 1)},"w":${entry('"U8"', '[1]', 1, 2)}}`,
    2,
    /"w" appears twice/,
  ],
  [
    'a name twice, once escaped',
    `{"w":${entry('"U8"', '[1]', 0, 1)},"\\u0077":${entry('"U8"', '[1]', 1, 2)}}`,
    2,
    /twice/,
  ],
  ['a field twice', one('{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}'), 0, /"dtype" appears twice/],
  ['metadata twice', '{"__metadata__":{},"__metadata__":{}}', 0, /twice/],
  ['a metadata key twice', '{"__metadata__":{"a":"1","a":"2"}}', 0, /"a" appears twice/],
  ['a metadata number', '{"__metadata__":{"a":1}}', 0, /'a' that is not a string/],
  ['metadata that is no object', '{"__metadata__":"pt"}', 0, /not an object of strings/],
  ['an entry that is no object', one('7'), 0, /'w': its entry is not an object/],
  ['an unknown dtype', one(entry('"I4"', '[2]', 0, 1)), 1, /dtype is unknown \| got "I4"/],
  ['a dtype in lower case', one(entry('"f32"', '[1]', 0, 4)), 4, /dtype is unknown/],
  ['a dtype that is no string', one(entry('3', '[1]', 0, 4)), 4, /dtype is unknown/],
  ['no dtype', one('{"shape":[1],"data_offsets":[0,1]}'), 1, /dtype is unknown \| got nothing/],
  ['no shape', one('{"dtype":"U8","data_offsets":[0,1]}'), 1, /shape is not a list/],
  ['a float dimension', one(entry('"U8"', '[1.0]', 0, 1)), 1, /shape holds .* got 1\.0/],
  ['an exponent', one(entry('"U8"', '[1e0]', 0, 1)), 1, /shape holds .* got 1e0/],
  ['a negative dimension', one(entry('"U8"', '[-1]', 0, 1)), 1, /shape holds .* got -1/],
  ['minus zero', one(entry('"U8"', '[-0]', 0, 0)), 0, /shape holds/],
  ['a string dimension', one(entry('"U8"', '["1"]', 0, 1)), 1, /shape holds/],
  ['a leading zero', one(entry('"U8"', '[01]', 0, 1)), 1, /not valid JSON/],
  ['a dimension beyond 2^53', one(entry('"U8"', '[9007199254740993]', 0, 1)), 1, /shape holds/],
  [
    'a product that overflows',
    one(entry('"U8"', '[4294967296,4294967296]', 0, 0)),
    0,
    /product of its shape overflows/,
  ],
  ['an overflow that a later 0 would hide', one(entry('"U8"', '[4294967296,4294967296,0]', 0, 0)), 0, /overflows/],
  ['bits that overflow', one(entry('"F64"', '[4503599627370496]', 0, 0)), 0, /size in bits overflows/],
  ['a half-filled byte', one(entry('"F4"', '[3]', 0, 2)), 2, /do not fill whole bytes/],
  ['six-bit elements that end inside a byte', one(entry('"F6_E2M3"', '[5]', 0, 4)), 4, /do not fill whole bytes/],
  ['a float offset', one(entry('"U8"', '[1]', '0.0', 1)), 1, /data_offsets holds/],
  ['a negative offset', one(entry('"U8"', '[1]', -1, 0)), 0, /data_offsets holds/],
  ['three offsets', one('{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}'), 2, /not \[begin, end\]/],
  ['an end before the begin', one(entry('"U8"', '[1]', 2, 1)), 2, /end before they begin/],
  ['a span too short', one(entry('"F32"', '[2]', 0, 4)), 4, /got 4 bytes \| expected 8 bytes for F32 \[2\]/],
  ['a span too long', one(entry('"BF16"', '[2,2]', 0, 9)), 9, /got 9 bytes/],
  ['a first tensor that does not start at 0', one(entry('"U8"', '[1]', 1, 2)), 2, /hole before tensor 'w'/],
  ['a hole', `{"a":${entry('"U8"', '[1]', 0, 1)},"b":${entry('"U8"', '[1]', 2, 3)}}`, 3, /hole before tensor 'b'/],
  ['an overlap', `{"a":${entry('"U8"', '[2]', 0, 2)},"b":${entry('"U8"', '[2]', 1, 3)}}`, 3, /'b' that overlaps/],
  ['the same bytes twice', `{"a":${entry('"U8"', '[2]', 0, 2)},"b":${entry('"U8"', '[2]', 0, 2)}}`, 2, /overlaps/],
  ['a truncated file', one(entry('"U8"', '[100]', 0, 100)), 99, /ends before its last tensor .* truncated/],
  ['bytes behind the last tensor', one(entry('"U8"', '[1]', 0, 1)), 2, /bytes after its last tensor/],
  ['bytes behind an empty header', '{}', 1, /bytes after its last tensor/],
];

for (const [rule, header, bytes, message] of BROKEN)
  test(`refused: ${rule}`, () => {
    assert.throws(() => open(header, bytes), designed('LPQ_SAFETENSORS', message));
    assert.throws(() => open(header, bytes), designed('LPQ_SAFETENSORS', 'x.safetensors'));
  });

test('refused: files too short for a header, headers too long, no file', async () => {
  const { writeFileSync } = await import('node:fs');
  const file = path.join(dir, 'short.safetensors');
  const cases: [Buffer, RegExp][] = [
    [Buffer.alloc(0), /shorter than the 8 bytes/],
    [Buffer.alloc(7), /shorter than the 8 bytes/],
    [Buffer.from([3, 0, 0, 0, 0, 0, 0, 0, 0x7b, 0x7d]), /ends inside its header .* truncated/],
    [Buffer.from([0x01, 0xe1, 0xf5, 0x05, 0, 0, 0, 0, 0x7b]), /above the limit \| got 100000001/],
    [Buffer.from('{"input_ids": [1]}'), /begins with text instead of the length of the header \| got .*input_/],
    [Buffer.from([255, 255, 255, 255, 255, 255, 255, 255, 0x7b]), /above the limit \| got 18446744073709551615/],
    [Buffer.from([0x00, 0xe1, 0xf5, 0x05, 0, 0, 0, 0, 0x7b]), /ends inside its header/], // the limit itself is fine
  ];
  for (const [bytes, message] of cases) {
    writeFileSync(file, bytes);
    assert.throws(() => SafetensorsFile.open(file), designed('LPQ_SAFETENSORS', message));
  }
  assert.throws(() => SafetensorsFile.open(path.join(dir, 'none')), designed('LPQ_FILE', /none/));
  assert.throws(() => SafetensorsFile.open(dir), designed('LPQ_FILE', /regular file/));
});

test('accepted: scalars, zero-size tensors, an empty header, trailing spaces, unordered entries, odd names', () => {
  assert.deepEqual([...open('{}').names()], []);
  assert.deepEqual([...open('{}      ').names()], []);
  const file = open(
    `{"b":${entry('"F32"', '[]', 4, 8)},"__proto__":${entry('"I32"', '[1]', 0, 4)},"e":${entry('"F64"', '[0,5]', 4, 4)},` +
      `"1":${entry('"U8"', '[0]', 8, 8)},"__metadata__":{"format":"pt","__proto__":"x"}}`,
    8,
  );
  assert.deepEqual([...file.names()], ['__proto__', 'e', 'b', '1']);
  assert.deepEqual(file.shape('b'), []);
  assert.deepEqual(file.tensor('e').shape, [0, 5]);
  assert.equal(file.tensor('e').byteLength, 0);
  assert.equal(file.metadata?.format, 'pt');
  assert.throws(() => file.tensor('toString'), designed('LPQ_TENSOR_MISSING', 'toString'));
});

test('a misaligned header still gives aligned tensors, and dtypes without a native one read as bytes', () => {
  const data = new Uint8Array(new Float32Array([1.5, -2]).buffer);
  // 7 letters more or less decide where the data lies; try all residues.
  for (let pad = 0; pad < 8; pad++) {
    const header = `{"w":${entry('"F32"', '[2]', 0, 8)}}${' '.repeat(pad)}`;
    const file = SafetensorsFile.open(handmade(path.join(dir, `odd${pad}.safetensors`), header, data));
    assert.deepEqual([...typed(file.tensor('w'))], [1.5, -2]);
  }
  const raw = open(
    `{"c":${entry('"C64"', '[1]', 0, 8)},"f":${entry('"F4"', '[2,2]', 8, 10)},"s":${entry('"U8"', '[2]', 10, 12)}}`,
    12,
  );
  assert.deepEqual([raw.tensor('c').dtype, raw.tensor('c').shape], ['u8', [8]]);
  assert.deepEqual([raw.tensor('f').dtype, raw.tensor('f').shape], ['u8', [2]]);
  assert.equal(raw.tensor('s', 'f8_e8m0').dtype, 'f8_e8m0');
  assert.throws(() => raw.tensor('s', 'f16'), designed('LPQ_DTYPE', /'s'.*cannot be read as f16/));
});

test('names compare as their UTF-8 bytes', () => {
  const name = fc.string({ unit: 'binary', maxLength: 6 });
  fc.assert(
    fc.property(name, name, fc.constantFrom('', '\uffee', '\u{1f600}'), (a, b, prefix) => {
      assert.equal(Math.sign(compareUtf8(prefix + a, b)), Buffer.compare(Buffer.from(prefix + a), Buffer.from(b)));
    }),
    { numRuns: 2000 },
  );
});

test('strict JSON agrees with JSON.parse on every value without duplicates', () => {
  const plain = (v: StrictJson): unknown =>
    v instanceof JsonNumber
      ? Number(v.text)
      : v instanceof Map
        ? Object.fromEntries([...v].map(([k, x]) => [k, plain(x)]))
        : Array.isArray(v)
          ? v.map(plain)
          : v;
  fc.assert(
    fc.property(fc.json({ maxDepth: 5 }), fc.constantFrom(undefined, 1, '\t'), (text, indent) => {
      const value = JSON.parse(text);
      assert.deepEqual(plain(parseStrictJson(JSON.stringify(value, null, indent))), value);
    }),
    { numRuns: 500 },
  );
});

test('strict JSON refuses what JSON.parse refuses', () => {
  const accepts = (parse: (text: string) => unknown, text: string): boolean => {
    try {
      parse(text);
      return true;
    } catch {
      return false;
    }
  };
  fc.assert(
    fc.property(fc.array(fc.constantFrom(...'{}[]",:0123.eE+- \\ntrue'), { maxLength: 12 }), (parts) => {
      const text = parts.join('');
      // One way only: duplicates are our own refusal.
      if (accepts(parseStrictJson, text)) assert.ok(accepts(JSON.parse, text), text);
      else if (accepts(JSON.parse, text)) assert.match(text, /"/);
    }),
    { numRuns: 5000 },
  );
});
