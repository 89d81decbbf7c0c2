import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { allocate, createRuntime, fromTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { codeAt } from '../src/quantize/reference.js';

const rt = createRuntime(2);

async function pack(n: number, k: number, bits: number, codes: Uint8Array): Promise<Uint8Array> {
  const stream = allocate('u8', [n, Math.ceil((k * bits) / 8)]);
  stream.bytes().fill(0xa5);
  ops.packCodes(rt, fromTyped('u8', [n, k], codes), stream, { bits });
  await rt.sync();
  return stream.bytes();
}

test('element k of a row stands at bit k*bits, padding is 0, and unpacking inverts', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.integer({ min: 1, max: 8 }),
      fc.integer({ min: 1, max: 5 }),
      fc.integer({ min: 1, max: 75 }),
      fc.infiniteStream(fc.integer({ min: 0, max: 255 })),
      async (bits, n, k, random) => {
        const codes = Uint8Array.from({ length: n * k }, () => random.next().value & (2 ** bits - 1));
        const stream = await pack(n, k, bits, codes);
        const bytes = Math.ceil((k * bits) / 8);
        for (let row = 0; row < n; row++) {
          for (let i = 0; i < k; i++) assert.equal(codeAt(stream, row * bytes, bits, i), codes[row * k + i]);
          for (let bit = k * bits; bit < bytes * 8; bit++) assert.equal(codeAt(stream, row * bytes, 1, bit), 0);
        }
        const back = allocate('u8', [n, k]);
        ops.unpackCodes(rt, fromTyped('u8', [n, bytes], stream), back, { bits });
        await rt.sync();
        assert.deepEqual(back.bytes(), codes);
      },
    ),
    { numRuns: 300 },
  );
});

test('bits above the width are ignored', async () => {
  assert.deepEqual(await pack(1, 4, 2, Uint8Array.of(0xff, 4, 6, 0xf1)), Uint8Array.of(0b01_10_00_11));
});

test('many rows on several threads', async () => {
  const [n, k, bits] = [700, 1001, 3];
  const codes = Uint8Array.from({ length: n * k }, (_, i) => (i * 2654435761) >>> 29);
  const stream = await pack(n, k, bits, codes);
  const back = allocate('u8', [n, k]);
  ops.unpackCodes(rt, fromTyped('u8', [n, Math.ceil((k * bits) / 8)], stream), back, { bits });
  await rt.sync();
  assert.deepEqual(back.bytes(), codes);
});

test('wrong widths and shapes are refused', async () => {
  const refused = async (n: number, k: number, bytes: number, bits: number) => {
    ops.packCodes(rt, allocate('u8', [n, k]), allocate('u8', [n, bytes]), { bits });
    await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT' });
  };
  await refused(2, 9, 4, 4);
  await refused(2, 8, 9, 9);
  await refused(2, 8, 0, 0);
});
