import assert from 'node:assert/strict';
import { test } from 'node:test';
import { addon, allocate, createRuntime, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { decodeF16, f32, poisoned, Random } from './support.js';

/** The f16 pattern nearest to `value`, ties to even, by search over all of one sign: from the definition alone. */
const SIZES = Float64Array.from({ length: 0x7c00 }, (_, bits) => decodeF16(bits));
function nearestF16(value: number): number {
  const size = Math.abs(value);
  let low = 0;
  let high = SIZES.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if ((SIZES[middle] as number) <= size) low = middle;
    else high = middle;
  }
  const below = size - (SIZES[low] as number);
  const above = (SIZES[high] as number) - size;
  const bits = below < above || (below === above && low % 2 === 0) ? low : high;
  return bits | (value < 0 || Object.is(value, -0) ? 0x8000 : 0);
}

/** The scale that the contract asks for, by trying powers of two from the largest downwards. */
function scaleOf(row: readonly number[]): number {
  const largest = Math.max(0, ...row.filter(Number.isFinite).map(Math.abs));
  if (largest === 0) return 1;
  for (let power = 127; ; power--) {
    const scale = 2 ** power;
    if (largest * scale < 2 ** 16 && (SIZES[nearestF16(largest * scale)] as number) < 2 ** 15) return scale;
  }
}

function rows(width: number): number[][] {
  const random = new Random(77 + width);
  const list: number[][] = [];
  for (const power of [-149, -140, -126, -113, -112, -14, 0, 3, 90, 126])
    list.push(Array.from({ length: width }, () => random.normal() * 2 ** power * 0.2));
  // Rounding carries the largest into the next power of two; the tie does too, and just below it nothing does.
  for (const value of [2 - 2 ** -12, 2 - 2 ** -11, 2 - 2 ** -11 - 2 ** -23, 2 - 2 ** -23, 1])
    list.push(Array.from({ length: width }, (_, i) => (i === 0 ? -value : value / (1 + i))));
  list.push(new Array<number>(width).fill(0), new Array<number>(width).fill(-0));
  // A wide row: small ones become subnormal, then 0.
  list.push(Array.from({ length: width }, (_, i) => 2 ** -(i % 45) * (1 + random.uniform())));
  list.push(Array.from({ length: width }, (_, i) => (i % 3 === 0 ? Infinity : i % 3 === 1 ? -Infinity : 1.5)));
  return list.map((row) => [...Float32Array.from(row)]);
}

test('pack_rows rounds rows as the contract says, and unpack_rows gives back what they hold', async () => {
  for (const width of [1, 5, 64, 333]) {
    const rt = createRuntime(2);
    const list = rows(width);
    const shape = [list.length, width];
    const x = f32(shape, Float32Array.from(list.flat()));
    const y = poisoned('f16', shape);
    const scales = poisoned('f32', [list.length]);
    const back = poisoned('f32', shape);
    ops.packRows(rt, x, y, scales);
    ops.unpackRows(rt, y, scales, back);
    await rt.sync();
    for (const [t, row] of list.entries()) {
      const scale = scaleOf(row);
      assert.equal(typed(scales)[t], scale, `row ${t} of ${width}`);
      for (const [c, value] of row.entries()) {
        const bits = typed<Uint16Array>(y)[t * width + c] as number;
        const want = Number.isFinite(value) ? nearestF16(value * scale) : value > 0 ? 0x7c00 : 0xfc00;
        assert.equal(bits, want, `row ${t}, column ${c} of ${width}: ${value} * ${scale}`);
        assert.ok(Object.is(typed(back)[t * width + c], decodeF16(bits) / scale), `row ${t}, column ${c}: back`);
      }
    }
  }
});

test('NaN keeps its sign and its upper bits and changes no scale', async () => {
  const rt = createRuntime(1);
  const patterns = [0x7fc00000, 0xffc00000, 0x7f802000, 0xff812345, 0x7f800001];
  const x = allocate('f32', [1, patterns.length + 1]);
  new Uint32Array(x.bytes().buffer, x.bytes().byteOffset).set([...patterns, 0x3fc00000]);
  const y = poisoned('f16', x.shape);
  const scales = poisoned('f32', [1]);
  ops.packRows(rt, x, y, scales);
  const back = poisoned('f32', x.shape);
  ops.unpackRows(rt, y, scales, back);
  await rt.sync();
  assert.equal(typed(scales)[0], 2 ** 14);
  assert.deepEqual([...typed<Uint16Array>(y)], [0x7e00, 0xfe00, 0x7e01, 0xfe09, 0x7e00, 0x7600]);
  const bits = new Uint32Array(back.bytes().slice().buffer);
  assert.deepEqual([...bits], [0x7fc00000, 0xffc00000, 0x7fc02000, 0xffc12000, 0x7fc00000, 0x3fc00000]);
});

test('wrong tensors are named; both operations are on every backend', async () => {
  const rt = createRuntime(1);
  const x = allocate('f32', [2, 3]);
  const y = allocate('f16', [2, 3]);
  ops.packRows(rt, x, y, allocate('f32', [3]));
  await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT', message: /scales has the shape \[3\], not \[2\]/ });
  ops.packRows(rt, y, y, allocate('f32', [2]));
  await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT', message: /x is f16, not f32/ });
  ops.unpackRows(rt, y, allocate('f32', [2]), allocate('f32', [3, 2]));
  await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT', message: /x has the shape/ });
  for (const name of ['pack_rows', 'unpack_rows']) {
    assert.ok(addon().operations().includes(name));
    assert.ok(addon().cudaOperations().includes(name));
  }
});
