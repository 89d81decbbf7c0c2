import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { SOURCE_TYPES, typeInWords } from '../../../formats/gguf/decode/index.js';
import { GGUF_TYPES } from '../../../formats/gguf/types.js';
import { ROOT } from '../../src/model/fixtures.js';

interface Row {
  readonly id: number;
  readonly block: number;
  readonly bytes: number;
  readonly scales: readonly number[];
  readonly data: string;
  readonly values: string;
  readonly sha256: string;
}

const ROWS = JSON.parse(readFileSync(path.join(ROOT, 'test', 'fixtures', 'gguf', 'blocks.json'), 'utf8')) as Record<
  string,
  Row
>;

/** The bytes that make.py draws. */
function drawn({ id, bytes, scales }: Row, count: number): Uint8Array {
  let x = id;
  const out = new Uint8Array(count * bytes);
  for (let i = 0; i < out.length; i++) {
    x = (Math.imul(1664525, x) + 1013904223) >>> 0;
    out[i] = (x >>> 24) & (scales.includes(i % bytes) ? 0xbf : 0xff);
  }
  return out;
}

for (const [name, row] of Object.entries(ROWS))
  test(`${name}: blocks of any bits are what gguf-py makes of them, bit by bit`, () => {
    const type = SOURCE_TYPES.find((each) => each.name === name);
    assert.ok(type && typeof type.holds === 'function');
    assert.deepEqual([type.id, type.block, type.bytes], [row.id, row.block, row.bytes]);
    const data = Buffer.from(row.data, 'base64');
    const few = data.length / type.bytes;
    const out = new Float32Array(few * type.block);
    type.holds(data, few, out);
    const bits = Buffer.from(row.values, 'base64');
    const expected = new Float32Array(bits.buffer.slice(bits.byteOffset, bits.byteOffset + bits.length));
    for (const [i, value] of expected.entries()) assert.ok(Object.is(out[i], value), `${i}: ${out[i]}, not ${value}`);
    const many = new Float32Array(512 * type.block);
    type.holds(drawn(row, 512), 512, many);
    assert.equal(createHash('sha256').update(new Uint8Array(many.buffer)).digest('hex'), row.sha256);
  });

test('every type that gguf-py decodes is there, and what lpq writes has the same sizes', () => {
  const decoded = SOURCE_TYPES.filter(({ holds }) => typeof holds === 'function').map(({ name }) => name);
  assert.deepEqual(decoded.toSorted(), Object.keys(ROWS).toSorted());
  for (const { name, id, block, bytes } of GGUF_TYPES) {
    const type = SOURCE_TYPES.find((each) => each.id === id);
    assert.deepEqual([type?.name.toLowerCase(), type?.block, type?.bytes], [name, block, bytes]);
  }
  assert.equal(typeInWords(15), 'Q8_K (type 15)');
  assert.equal(typeInWords(99), 'type 99');
});
