import assert from 'node:assert/strict';
import test from 'node:test';
import fc from 'fast-check';
import { Random } from '../../../src/calibrate/random.js';
import { LpqError } from '../../../src/core/error.js';

test('SplitMix64 gives its published sequences', () => {
  // Reference outputs of the algorithm for the seeds 0 and 1234567.
  const zero = new Random(0);
  assert.deepEqual(
    [zero.next(), zero.next(), zero.next()],
    [0xe220a8397b1dcdafn, 0x6e789e6aa1b965f4n, 0x06c45d188009454fn],
  );
  const other = new Random(1234567);
  assert.deepEqual([other.next(), other.next()], [6457827717110365317n, 3203168211198807973n]);
});

test('a shuffle is a permutation, the same for the same seed, and nearly even in every place', () => {
  fc.assert(
    fc.property(fc.nat(), fc.integer({ min: 0, max: 200 }), (seed, count) => {
      const order = [...new Random(seed).shuffled(count)];
      assert.deepEqual(
        [...order].sort((a, b) => a - b),
        Array.from({ length: count }, (_, i) => i),
      );
      assert.deepEqual([...new Random(seed).shuffled(count)], order);
    }),
  );
  // 7000 shuffles of 7: each number leads about 1000 times, standard deviation sqrt(7000/7 * 6/7) = 29.
  const random = new Random(1);
  const leads = new Array<number>(7).fill(0);
  for (let i = 0; i < 7000; i++) leads[[...random.shuffled(7)][0]!]!++;
  for (const count of leads) assert.ok(Math.abs(count - 1000) < 5 * 29, `${leads}`);
});

test('a seed that is no natural number is refused', () => {
  for (const seed of [-1, 0.5, Number.NaN])
    assert.throws(
      () => new Random(seed),
      (error) => error instanceof LpqError && error.code === 'LPQ_USAGE',
    );
});
