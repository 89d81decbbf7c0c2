import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fromTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { normalQuantile } from '../../src/model/normal.js';
import { isFailure, onDevice, rt, steps } from './runtime-under-test.js';
import { decodeBf16, expectClose, f32, poisoned, Random, typed, U32 } from './support.js';

/** Rows made as large as others, columns scaled, rows cut above their mean: plain loops in double. */

const failsWith = (words: RegExp) =>
  assert.rejects(rt.sync(), (error: { code?: string; message: string }) =>
    isFailure(error, 'LPQ_NATIVE_ARGUMENT', words),
  );
const [ROWS, WIDTH] = [41, 70];

/** Row by row. */
function mapped(x: Float32Array, make: (row: Float32Array, t: number) => number[]): Float64Array {
  const rows = Array.from({ length: ROWS }, (_, t) => make(x.subarray(t * WIDTH, (t + 1) * WIDTH), t));
  return Float64Array.from(rows.flat());
}
const mean = (values: readonly number[]) => values.reduce((sum, v) => sum + v, 0) / values.length;
const square = (row: Float32Array) => mean(Array.from(row, (v) => v * v));

test('rows are made as large as those of another matrix, small ones no larger than the floor says', async () => {
  const random = new Random(21);
  const [x, like] = [random.normals(ROWS * WIDTH, 2), random.normals(ROWS * WIDTH, 0.3)];
  x.fill(1e-4, 0, WIDTH);
  x.fill(0, WIDTH, 2 * WIDTH);
  const [from, y] = [f32([ROWS, WIDTH], x), poisoned('f32', [ROWS, WIDTH])];
  ops.matchRms(rt, from, f32([ROWS, WIDTH], like), y, { floor: 1e-5 });
  ops.matchRms(rt, from, f32([ROWS, WIDTH], like), from, { floor: 1e-5 });
  await rt.sync();
  const want = mapped(x, (row, t) => {
    const wanted = Math.sqrt(square(like.subarray(t * WIDTH, (t + 1) * WIDTH)));
    const own = Math.sqrt(Math.max(square(row), 1e-5));
    return Array.from(row, (v) => (v * wanted) / own);
  });
  // Computed in double, one rounding; and the root of a quotient beside a quotient of roots. In f32 also two sums of WIDTH squares.
  expectClose('match_rms', typed(y), want, (i) => 1.001 * U32 * Math.abs(want[i]!) * steps(WIDTH + 8));
  assert.deepEqual(typed(from), typed(y));
  ops.matchRms(rt, from, from, from, { floor: 0 });
  await failsWith(/floor is 0/);
  ops.matchRms(rt, from, f32([1, WIDTH], new Float32Array(WIDTH)), from, { floor: 1 });
  await failsWith(/like/);
});

test('columns are scaled each by its own number, of any dtype', async () => {
  const random = new Random(22);
  const [x, by] = [random.normals(ROWS * WIDTH, 1), random.normals(WIDTH, 1)];
  const bits = Uint16Array.from(new Uint32Array(by.buffer), (v) => v >>> 16);
  const [whole, half, from] = [poisoned('f32', [ROWS, WIDTH]), poisoned('f32', [ROWS, WIDTH]), f32([ROWS, WIDTH], x)];
  ops.scaleColumns(rt, from, f32([WIDTH], by), whole);
  ops.scaleColumns(rt, from, fromTyped('bf16', [WIDTH], bits), half);
  ops.scaleColumns(rt, from, f32([WIDTH], by), from);
  await rt.sync();
  assert.deepEqual(
    typed(whole),
    x.map((v, i) => v * by[i % WIDTH]!),
  );
  assert.deepEqual(
    typed(half),
    x.map((v, i) => v * decodeBf16(bits[i % WIDTH]!)),
  );
  assert.deepEqual(typed(from), typed(whole));
  ops.scaleColumns(rt, from, f32([3], new Float32Array(3)), from);
  await failsWith(/scales/);
});

test('what stands above a cutoff of its row stays, less the cutoff', async () => {
  const x = new Random(23).normals(ROWS * WIDTH, 1.5);
  x.fill(4, 0, WIDTH);
  for (const share of [0.95, 0.5, 0.1]) {
    const deviations = normalQuantile(share);
    const [from, y] = [f32([ROWS, WIDTH], x), poisoned('f32', [ROWS, WIDTH])];
    ops.gaussianTopK(rt, from, y, { deviations });
    ops.gaussianTopK(rt, from, from, { deviations });
    await rt.sync();
    const cut = mapped(x, (row) => {
      const middle = mean([...row]);
      const spread = Math.sqrt(mean(Array.from(row, (v) => (v - middle) ** 2)));
      return Array.from(row, (v) => v - (middle + deviations * spread));
    });
    // In double but for the last rounding; sums of 70 terms in another order differ in their last bits. In f32 the cutoff, below 8, has
    // their roundings.
    expectClose(
      'gaussian_top_k',
      typed(y),
      cut.map((v) => Math.max(v, 0)),
      (i) => U32 * Math.abs(cut[i]!) + (onDevice ? 8 * (WIDTH + 8) * U32 : 1e-13),
    );
    assert.deepEqual(typed(from), typed(y));
    const kept = typed<Float32Array>(y).filter((v) => v > 0).length / x.length;
    assert.ok(Math.abs(kept - (1 - share)) < 0.04, `${kept} of the values stay`);
  }
});

test('quantiles of the normal distribution are those of tables', () => {
  for (const [share, want] of [
    [0.5, 0],
    [0.95, 1.6448536269514722],
    [0.975, 1.959963984540054],
    [0.999, 3.090232306167813],
    [0.01, -2.3263478740408408],
  ] as const)
    assert.ok(Math.abs(normalQuantile(share) - want) < 1e-9, `${share}: ${normalQuantile(share)}`);
});
