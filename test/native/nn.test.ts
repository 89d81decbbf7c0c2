import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime, fromTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { decodeBf16, decodeF16, expectClose, f32, i32, poisoned, Random, typed, U32 } from './support.js';

const rt = createRuntime(2);

test('embedding copies rows, scaled, from f32, f16 and bf16 tables', async () => {
  const random = new Random(1);
  const [v, c, t] = [37, 45, 23];
  const ids = Array.from({ length: t }, () => random.integer(0, v - 1));
  const bits = Uint16Array.from({ length: v * c }, () => random.integer(0, 0x7bff));
  for (const [dtype, decode] of [
    ['f16', decodeF16],
    ['bf16', decodeBf16],
  ] as const)
    for (const scale of [1, 2.5]) {
      const y = poisoned('f32', [t, c]);
      ops.embedding(rt, i32(ids), fromTyped(dtype, [v, c], bits), y, { scale });
      await rt.sync();
      ids.forEach((id, row) => {
        for (let j = 0; j < c; j++)
          assert.equal(typed(y)[row * c + j], Math.fround(decode(bits[id * c + j]!) * scale), `${dtype} ${row} ${j}`);
      });
    }
  const table = random.normals(v * c);
  const y = poisoned('f32', [t, c]);
  ops.embedding(rt, i32(ids), f32([v, c], table), y);
  await rt.sync();
  ids.forEach((id, row) => {
    assert.deepEqual(typed(y).slice(row * c, row * c + c), table.slice(id * c, id * c + c));
  });
});

test('rmsnorm', async () => {
  const random = new Random(2);
  for (const [t, c, offset] of [
    [1, 1, 0],
    [3, 15, 1],
    [7, 64, 0],
    [33, 387, 1],
  ] as const) {
    const x = random.normals(t * c, 3);
    const w = random.normals(c);
    const y = poisoned('f32', [t, c]);
    const inPlace = f32([t, c], x);
    ops.rmsnorm(rt, f32([t, c], x), f32([c], w), y, { eps: 1e-5, offset });
    ops.rmsnorm(rt, inPlace, f32([c], w), inPlace, { eps: 1e-5, offset });
    await rt.sync();
    const want = Array.from(x, (value, i) => {
      const row = x.subarray(Math.floor(i / c) * c, Math.floor(i / c) * c + c);
      const mean = row.reduce((sum, v) => sum + v * v, 0) / c;
      return (value / Math.sqrt(mean + 1e-5)) * (w[i % c]! + offset);
    });
    // f32 roundings: 1/root, weight + offset, two products; the offset's is relative to |w| + 1.
    expectClose('rmsnorm', typed(y), want, (i) => {
      const gain = Math.abs(w[i % c]! + offset);
      return 4.1 * U32 * Math.abs(want[i]!) * (gain > 0 ? (gain + Math.abs(w[i % c]!) + offset) / gain : 1) + 1e-37;
    });
    assert.deepEqual(typed(inPlace), typed(y));
  }
});

test('rope, both styles, part of the head only', async () => {
  const random = new Random(3);
  const [t, heads, headDim, rotary, places] = [9, 3, 22, 14, 40];
  const half = rotary / 2;
  const angles = random.normals(places * half, 3);
  const [cos, sin] = [angles.map(Math.cos), angles.map(Math.sin)];
  const positions = Array.from({ length: t }, () => random.integer(0, places - 1));
  const x = random.normals(t * heads * headDim);
  for (const style of ['half', 'interleaved'] as const) {
    const y = f32([t, heads * headDim], x);
    ops.rope(rt, y, f32([places, half], cos), f32([places, half], sin), i32(positions), {
      heads,
      headDim,
      rotary,
      style,
    });
    await rt.sync();
    const want = Float64Array.from(x);
    const size = Float64Array.from(x, Math.abs);
    for (let row = 0; row < t; row++)
      for (let h = 0; h < heads; h++)
        for (let i = 0; i < half; i++) {
          const base = (row * heads + h) * headDim;
          const [p, q] = style === 'half' ? [base + i, base + i + half] : [base + 2 * i, base + 2 * i + 1];
          const [c, s] = [cos[positions[row]! * half + i]!, sin[positions[row]! * half + i]!];
          want[p] = x[p]! * c - x[q]! * s;
          want[q] = x[q]! * c + x[p]! * s;
          size[p] = size[q] = Math.abs(x[p]!) + Math.abs(x[q]!);
        }
    // Two products and one sum, each rounded once; what is not rotated is not touched.
    expectClose(style, typed(y), want, (i) => 2.1 * U32 * size[i]!);
    for (let i = 0; i < x.length; i++) if (i % headDim >= rotary) assert.equal(typed(y)[i], x[i]);
  }
});

test('layernorm: with and without weight and bias, and with weights that take turns', async () => {
  const random = new Random(16);
  for (const [t, c, turns] of [
    [1, 1, 1],
    [6, 15, 3],
    [7, 64, 1],
    [33, 387, 1],
    [40, 20, 4],
  ] as const) {
    const x = random.normals(t * c, 3).map((v) => v + 50); // far from 0: the mean must not cancel badly
    const [w, b] = [random.normals(turns * c), random.normals(turns * c)];
    for (const [weight, bias] of [
      [w, b],
      [w, undefined],
      [undefined, undefined],
    ] as const) {
      const y = poisoned('f32', [t, c]);
      const shape = turns > 1 ? [turns, c] : [c];
      ops.layernorm(rt, f32([t, c], x), weight && f32(shape, weight), bias && f32(shape, bias), y, {
        eps: 1e-5,
        turns,
      });
      await rt.sync();
      const normal = Array.from(x, (value, i) => {
        const row = Array.from(x.subarray(Math.floor(i / c) * c, Math.floor(i / c) * c + c));
        const mean = row.reduce((sum, v) => sum + v, 0) / c;
        const variance = row.reduce((sum, v) => sum + (v - mean) ** 2, 0) / c;
        return (value - mean) / Math.sqrt(variance + 1e-5);
      });
      const part = (of: Float32Array | undefined, i: number, otherwise: number) =>
        of ? of[(Math.floor(i / c) % turns) * c + (i % c)]! : otherwise;
      const want = normal.map((v, i) => v * part(weight, i, 1) + part(bias, i, 0));
      // Statistics are f64: three f32 roundings, of the quotient, the product and the sum.
      expectClose('layernorm', typed(y), want, (i) => {
        const product = Math.abs(normal[i]! * part(weight, i, 1));
        return U32 * (2.01 * product + 1.01 * Math.abs(want[i]!)) + 1e-30;
      });
    }
  }
});

test('columns are cut out and matrices turned over, whatever their elements', async () => {
  const random = new Random(17);
  const made = {
    u8: (count: number) => Uint8Array.from({ length: count }, () => random.integer(0, 255)),
    bf16: (count: number) => Uint16Array.from({ length: count }, () => random.integer(0, 65_535)),
    f32: (count: number) => random.normals(count),
    f64: (count: number) => Float64Array.from(random.normals(count)),
  };
  for (const dtype of ['u8', 'bf16', 'f32', 'f64'] as const)
    for (const [rows, columns] of [
      [1, 1],
      [33, 70],
      [129, 31],
      [0, 5],
    ] as const) {
      const data = made[dtype](rows * columns);
      const x = fromTyped(dtype, [rows, columns], data);
      const turned = poisoned(dtype, [columns, rows]);
      ops.transpose(rt, x, turned);
      const [first, width] = [Math.floor(columns / 3), Math.ceil(columns / 2)];
      const cut = poisoned(dtype, [rows, width]);
      ops.sliceColumns(rt, x, cut, { first });
      await rt.sync();
      const [a, b] = [typed<ArrayLike<number>>(turned), typed<ArrayLike<number>>(cut)];
      for (let r = 0; r < rows; r++)
        for (let c = 0; c < columns; c++) {
          assert.equal(a[c * rows + r], data[r * columns + c]);
          if (c >= first && c < first + width) assert.equal(b[r * width + c - first], data[r * columns + c]);
        }
    }
});

test('new operations name what is wrong with their tensors', async () => {
  const x = f32([2, 4], new Float32Array(8));
  const rejects = async (enqueue: () => void, message: RegExp) => {
    enqueue();
    await assert.rejects(rt.sync(), message);
  };
  await rejects(() => ops.activation(rt, x, x, { act: 'tanh' as 'relu' }), /act is 'tanh'/);
  await rejects(() => ops.softCap(rt, x, x, { cap: -1 }), /cap is -1/);
  await rejects(() => ops.sliceColumns(rt, x, poisoned('f32', [2, 3]), { first: 2 }), /columns 2 to 5/);
  await rejects(() => ops.sliceColumns(rt, x, poisoned('f64', [2, 3]), { first: 0 }), /y is f64, not f32/);
  await rejects(() => ops.transpose(rt, x, poisoned('f32', [2, 4])), /shape/);
  await rejects(() => ops.layernorm(rt, x, f32([3], new Float32Array(3)), undefined, x, { eps: 0 }), /weight has 3/);
  await rejects(() => ops.layernorm(rt, x, undefined, undefined, x, { eps: 0, turns: 3 }), /turns is 3/);
});

test('add, with a scale, in place', async () => {
  const random = new Random(5);
  const [a, b] = [random.normals(1009), random.normals(1009)];
  const y = f32([1009], a);
  const plain = poisoned('f32', [1009]);
  ops.add(rt, y, f32([1009], b), y, { scale: 0.3 });
  ops.add(rt, f32([1009], a), f32([1009], b), plain);
  await rt.sync();
  const scale = Math.fround(0.3);
  assert.deepEqual(
    typed(y),
    a.map((v, i) => v + Math.fround(b[i]! * scale)),
  );
  assert.deepEqual(
    typed(plain),
    a.map((v, i) => v + b[i]!),
  );
});

test('zero', async () => {
  for (const dtype of ['f64', 'f16', 'u8', 'i32'] as const) {
    const y = poisoned(dtype, [1237]);
    ops.zero(rt, y);
    await rt.sync();
    assert.ok(y.bytes().every((byte) => byte === 0));
  }
});
