import assert from 'node:assert/strict';
import test from 'node:test';
import fc from 'fast-check';
import { packTriangle, unpackTriangle } from '../../../formats/statistics/triangle.js';
import { fromTyped, typed } from '../../../native/binding.js';

/** Element [i][j] of a symmetric matrix; no f32 for most. */
const element = (i: number, j: number) => Math.sin(1 + Math.min(i, j) + 1000 * Math.max(i, j)) * 10 ** ((i + j) % 9);

test('a triangle lies row after row in f32, and comes back whole, whatever is looked at at once', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.integer({ min: 1, max: 200 }),
      fc.constantFrom('f64', 'f32'),
      fc.constantFrom(1, 600, 4096, 2 ** 28),
      async (k, dtype, window) => {
        const wide = Float64Array.from({ length: k * k }, (_, at) => element(Math.floor(at / k), at % k));
        const values = dtype === 'f64' ? wide : Float32Array.from(wide);
        const matrix = fromTyped(dtype, [k, k], values);
        const packed = await packTriangle(matrix, window);
        const want = Float32Array.from({ length: (k * (k + 1)) / 2 });
        let at = 0;
        for (let i = 0; i < k; i++) for (let j = 0; j <= i; j++) want[at++] = element(i, j);
        assert.deepEqual(typed(packed), want);
        for (const back of ['f64', 'f32'] as const) {
          const whole = await unpackTriangle(packed, k, back, true, window);
          assert.deepEqual([whole.dtype, whole.shape], [back, [k, k]]);
          assert.deepEqual(
            Float64Array.from(typed<Float64Array>(whole)),
            Float64Array.from(wide, (value) => Math.fround(value)),
          );
          const half = typed<Float64Array>(await unpackTriangle(packed, k, back, false, window));
          for (let i = 0; i < k; i++)
            for (let j = 0; j <= i; j++) assert.equal(half[i * k + j], Math.fround(wide[i * k + j] as number));
        }
      },
    ),
    { numRuns: 60 },
  );
});
