import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { text } from '../../../formats/gguf/metadata.js';
import { GgufWriter } from '../../../formats/gguf/write.js';
import { meanSquares } from '../../../formats/imatrix/importance.js';
import { readImportance } from '../../../formats/imatrix/read.js';
import { writeImportance } from '../../../formats/imatrix/write.js';
import { designed, scratch } from '../scratch.js';

// gguf-py reads what lpq writes in test/consumers, where hooks on another implementation sum the squares.

const dir = scratch();
const IMPORTANCE = {
  entries: new Map([
    ['blk.0.attn_q.weight', { sums: Float32Array.of(8, 2, 0, 4), counts: Float32Array.of(4) }],
    ['blk.0.ffn_up_exps.weight', { sums: Float32Array.of(3, 6, 0, 0), counts: Float32Array.of(3, 0) }],
  ]),
  chunks: 7,
  chunkSize: 128,
  datasets: ['books.txt'],
};

test('GGUF: what is written is read back, a count for each expert', async () => {
  const file = path.join(dir, 'a.gguf');
  await writeImportance(file, IMPORTANCE);
  assert.deepEqual(await readImportance(file), IMPORTANCE);
  const experts = IMPORTANCE.entries.get('blk.0.ffn_up_exps.weight')!;
  assert.deepEqual(meanSquares(experts, 2, 0), Float64Array.of(1, 2));
  assert.equal(meanSquares(experts, 2, 1), undefined, 'an expert that saw nothing');
  assert.equal(meanSquares(experts, 3, 0), undefined, 'columns that do not fit');
});

test('.dat: the bytes of the older form, and means that come back', async () => {
  const file = path.join(dir, 'a.dat');
  await writeImportance(file, IMPORTANCE);
  const bytes = readFileSync(file);
  assert.equal(bytes.readInt32LE(0), 2);
  assert.equal(bytes.readInt32LE(4), 'blk.0.attn_q.weight'.length);
  const at = 8 + 'blk.0.attn_q.weight'.length;
  assert.deepEqual([bytes.readInt32LE(at), bytes.readInt32LE(at + 4), bytes.readFloatLE(at + 8)], [4, 4, 8]);
  assert.equal(bytes.subarray(-9).toString(), 'books.txt');
  assert.equal(bytes.readInt32LE(bytes.length - 17), 7, 'chunks');
  const read = await readImportance(file);
  assert.deepEqual(meanSquares(read.entries.get('blk.0.attn_q.weight')!, 4), Float64Array.of(2, 0.5, 0, 1));
  const [first, idle] = [0, 1].map((expert) => meanSquares(read.entries.get('blk.0.ffn_up_exps.weight')!, 2, expert));
  assert.deepEqual([first, idle], [Float64Array.of(1, 2), Float64Array.of(1, 1)], 'of nothing llama.cpp makes ones');
  assert.deepEqual([read.chunks, read.datasets], [7, ['books.txt']]);
});

test('refused: files that are cut, numbers that are no sums of squares, other files', async () => {
  const whole = readFileSync(path.join(dir, 'a.dat'));
  const negative = Buffer.from(whole);
  negative.writeFloatLE(-1, 8 + 'blk.0.attn_q.weight'.length + 8);
  for (const [name, bytes, says] of [
    ['cut', whole.subarray(0, 60), /cut short/],
    ['longer', Buffer.concat([whole, Buffer.alloc(3)]), /has bytes after its end/],
    ['negative', negative, /not sums of squares/],
    ['text', Buffer.from('importance matrix'), /not an importance matrix/],
    ['header', Buffer.from('GGUF and more'), /not an importance matrix/],
  ] as const) {
    const file = path.join(dir, name);
    writeFileSync(file, bytes);
    await assert.rejects(readImportance(file), designed('LPQ_IMATRIX', says), name);
  }
  const plain = path.join(dir, 'plain.gguf');
  const writer = await GgufWriter.create(plain, new Map([['general.type', text('model')]]), []);
  await writer.finish();
  await assert.rejects(readImportance(plain), designed('LPQ_IMATRIX', /without sums of squares/));
  await assert.rejects(readImportance(path.join(dir, 'none')), designed('LPQ_IMATRIX', /does not exist/));
});
