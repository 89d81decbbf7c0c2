import assert from 'node:assert/strict';
import { test } from 'node:test';
import { MMA_M16N8K16, reorderLocals, WORD_75316420 } from '../../../src/layout/fragment.js';
import { indexAt, type Layout, layout, localCount, threadCount } from '../../../src/layout/layout.js';
import { columnLocal, columnSpatial, local, spatial } from '../../../src/layout/make.js';
import { permute, product } from '../../../src/layout/product.js';
import { equal } from './equal.js';
import { locate } from './locate.js';
import { printGrid, printLayout, printThreads } from './print.js';

const div = Math.trunc;

test('Tilus Fig. 3: operand A of m16n8k8', () => {
  const a = product(local(2, 1), spatial(8, 4), local(1, 2));
  assert.deepEqual(a.shape, [16, 8]);
  for (let t = 0; t < 32; t++)
    for (let i = 0; i < 4; i++)
      assert.deepEqual(indexAt(a, t, i), [div(t / 4) + div(i / 2) * 8, (t % 4) * 2 + (i % 2)]);
});

test('Tilus Fig. 4: the two primitive layouts', () => {
  assert.equal(printGrid(local(2, 3)), '0:0  0:1  0:2\n0:3  0:4  0:5');
  assert.equal(printGrid(spatial(2, 3)), '0:0  1:0  2:0\n3:0  4:0  5:0');
});

test('Tilus Fig. 5: products over layouts', () => {
  // (c) = (a) x (b) spreads [4, 6] over 6 threads of 4 elements; its halves differ in holding a0, a1 or a2, a3.
  const a = local(2, 1);
  const b = product(spatial(2, 3), local(1, 2));
  const c = product(a, b);
  assert.deepEqual(c.shape, [4, 6]);
  assert.equal(threadCount(c), 6);
  assert.equal(localCount(c), 4);
  for (let t = 0; t < 6; t++)
    for (let i = 0; i < 4; i++) {
      const outer = indexAt(a, div(t / 6), div(i / 2));
      const inner = indexAt(b, t % 6, i % 2);
      assert.deepEqual(indexAt(c, t, i), [outer[0]! * 2 + inner[0]!, outer[1]! * 6 + inner[1]!]);
    }
  // (e) = (d) x (a) is how column-major layouts are made of row-major ones.
  assert.ok(equal(product(local(1, 3), a), columnLocal(2, 3)));
  assert.ok(equal(product(spatial(1, 8), spatial(4, 1)), columnSpatial(4, 8)));
});

test('Tilus Fig. 6: split, distribute, merge', () => {
  // i splits into [4, 2, 8], j into [j0, 4, j2] (the text leaves j0 and j2 open: 2 and 2 here).
  const value = layout([64, 16], [4, 2, 8, 2, 4, 2], [2, 4], [0, 3, 1, 5]);
  for (let i = 0; i < 64; i++)
    for (let j = 0; j < 16; j++) {
      const [i0, i1, i2] = [div(i / 16), div(i / 8) % 2, i % 8];
      const [j0, j1, j2] = [div(j / 8), div(j / 2) % 4, j % 2];
      const { threads, local: place } = locate(value, [i, j]);
      assert.deepEqual(threads, [i2 * 4 + j1]);
      assert.equal(place, ((i0 * 2 + j0) * 2 + i1) * 2 + j2);
    }
  assert.equal(printLayout(value), 'shape [64, 16] modes [4, 2, 8, 2, 4, 2] spatial [2, 4] local [0, 3, 1, 5]');
});

test('Tilus Figs. 2 and 9: the fragments of m16n8k16', () => {
  const { a, b, c } = MMA_M16N8K16;
  assert.deepEqual(
    [a.shape, b.shape, c.shape],
    [
      [16, 16],
      [16, 8],
      [16, 8],
    ],
  );
  for (let lane = 0; lane < 32; lane++) {
    const [g, t] = [div(lane / 4), lane % 4];
    // PTX ISA, mma.m16n8k16 with 16-bit operands: a0 a1 | a2 a3 (row + 8) | a4 a5 (column + 8) | a6 a7.
    for (let i = 0; i < 8; i++)
      assert.deepEqual(indexAt(a, lane, i), [g + 8 * (div(i / 2) % 2), 2 * t + (i % 2) + 8 * div(i / 4)]);
    for (let i = 0; i < 4; i++) {
      assert.deepEqual(indexAt(b, lane, i), [2 * t + (i % 2) + 8 * div(i / 2), g]);
      assert.deepEqual(indexAt(c, lane, i), [g + 8 * div(i / 2), 2 * t + (i % 2)]);
    }
  }
  // Fig. 9 names A's layout ("column(2, 2)...") where B's belongs: that one is 16x16, the tile is 16x8.
  assert.deepEqual(product(columnLocal(2, 2), spatial(8, 4), local(1, 2)).shape, [16, 16]);
  // Reinterpretation keeps threads and bits a thread: 4 codes of 6 bits, 3 bytes.
  const bytes = product(local(3), spatial(32));
  assert.equal(threadCount(bytes), threadCount(b));
  assert.equal(localCount(bytes) * 8, localCount(b) * 6);
});

test('the word order 75316420', () => {
  const order = Array.from({ length: 8 }, (_, nibble) => indexAt(WORD_75316420, 0, nibble)[0]);
  assert.deepEqual(order, [0, 2, 4, 6, 1, 3, 5, 7]);
  const pair = product(local(1, 2), MMA_M16N8K16.b);
  const stored = reorderLocals(pair, WORD_75316420);
  for (let lane = 0; lane < 32; lane++)
    for (let i = 0; i < 8; i++) assert.deepEqual(indexAt(stored, lane, i), indexAt(pair, lane, order[i]!));
});

test('printing lists replicas and threads', () => {
  assert.equal(printGrid(layout([1, 2], [2], [-2], [0])), '0,1:0  0,1:1');
  assert.equal(printThreads(local(1, 2)), 'thread     v0     v1\n     0  (0,0)  (0,1)');
  assert.throws(
    () => printGrid(local(2)),
    (error: { code?: string }) => error.code === 'LPQ_LAYOUT',
  );
});

test('Tilus Fig. 2 (c): 24 bits a thread are three u8 or four i6, bit for bit', () => {
  const { b } = MMA_M16N8K16;
  const bytes = product(local(3), spatial(32));
  // Thread t keeps the bits it has: bit p of its codes is bit p % 8 of its byte p / 8, at 32 * (p / 8) + t in memory.
  for (let lane = 0; lane < 32; lane++)
    for (let p = 0; p < 24; p++) {
      const [at] = indexAt(bytes, lane, div(p / 8));
      assert.equal(at, 32 * div(p / 8) + lane);
      const element = indexAt(b, lane, div(p / 6));
      const { threads, local: place } = locate(b, element);
      assert.deepEqual([threads, place], [[lane], div(p / 6)]);
    }
});

test('64207531 and 75316420 are one word', () => {
  // MARLIN's paper reads the low half first, each half from its top nibble; from the top down it is 75316420.
  const order = Array.from({ length: 8 }, (_, nibble) => indexAt(WORD_75316420, 0, nibble)[0]!);
  assert.equal([...order.slice(0, 4).reverse(), ...order.slice(4).reverse()].join(''), '64207531');
  assert.equal(order.toReversed().join(''), '75316420');
});

test('Tilus section 7.2: local(n2).spatial(T).local(n1) of every byte count', () => {
  for (let n = 1; n <= 40; n++) {
    const n1 = [16, 8, 4, 2, 1].find((size) => n % size === 0)!;
    const value = product(local(n / n1), spatial(32), local(n1));
    assert.deepEqual([threadCount(value), localCount(value), value.shape], [32, n, [32 * n]]);
    for (let lane = 0; lane < 32; lane++)
      for (let byte = 0; byte < n; byte++)
        assert.deepEqual(indexAt(value, lane, byte), [div(byte / n1) * 32 * n1 + lane * n1 + (byte % n1)]);
  }
});

test('layouts are frozen through and through', () => {
  const made: Layout[] = [MMA_M16N8K16.a, local(2, 3), product(local(2), spatial(4)), permute(local(2, 3), [1, 0])];
  for (const value of made)
    for (const part of [value, value.shape, value.modeShape, value.spatialModes, value.localModes])
      assert.ok(Object.isFrozen(part));
});
