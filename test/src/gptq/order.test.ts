import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { solvingGroups, solvingOrder } from '../../../src/gptq/order.js';

const DIAGONAL = [1, 5, 5, 2, 9, 0, 3, 8];
const PAIRS = { kind: 'group', size: 2 } as const;

test('the three orders of a small diagonal', () => {
  assert.deepEqual([...solvingOrder('none', DIAGONAL, PAIRS)], [0, 1, 2, 3, 4, 5, 6, 7]);
  // Descending, ties as stored.
  assert.deepEqual([...solvingOrder('static', DIAGONAL, PAIRS)], [4, 7, 1, 2, 6, 3, 0, 5]);
  // Sorted inside pairs, pairs by their larger entry: (4,5) has 9, (6,7) has 8, (0,1) and (2,3) have 5.
  assert.deepEqual([...solvingOrder('group', DIAGONAL, PAIRS)], [4, 5, 7, 6, 1, 0, 2, 3]);
  assert.deepEqual([...solvingGroups(Int32Array.of(4, 5, 7, 6, 1, 0, 2, 3), PAIRS)], [2, 2, 3, 3, 0, 0, 1, 1]);
  assert.deepEqual([...solvingGroups(Int32Array.of(1, 0, 2), { kind: 'channel' })], [0, 0, 0]);
});

test('fours stay together and in order, by their largest entry', () => {
  const diagonal = [1, 5, 5, 2, 9, 0, 3, 8, 7, 7, 7, 7, 0, 0, 0, 10];
  const fours = (order: Int32Array) => {
    order.forEach((k, j) => {
      assert.equal(k % 4, j % 4);
    });
    return [0, 4, 8, 12].map((j) => (order[j] as number) / 4);
  };
  const groups = (size: number) => ({ kind: 'group', size }) as const;
  assert.deepEqual(fours(solvingOrder('none', diagonal, groups(8), 4)), [0, 1, 2, 3]);
  assert.deepEqual(fours(solvingOrder('static', diagonal, groups(8), 4)), [3, 1, 2, 0]);
  assert.deepEqual(fours(solvingOrder('group', diagonal, groups(8), 4)), [3, 2, 1, 0]);
  // Fours that span groups stay where they are.
  assert.deepEqual(fours(solvingOrder('group', diagonal, groups(2), 4)), [0, 1, 2, 3]);
  assert.deepEqual(fours(solvingOrder('static', diagonal, groups(2), 4)), [3, 1, 2, 0]);
});

test('every order is a permutation, and group order keeps groups together', () => {
  fc.assert(
    fc.property(
      fc.integer({ min: 1, max: 6 }),
      fc.integer({ min: 1, max: 5 }),
      fc.infiniteStream(fc.nat(9)),
      (g, size, numbers) => {
        const diagonal = Array.from({ length: g * size }, () => numbers.next().value as number);
        for (const kind of ['static', 'group', 'none'] as const) {
          const order = solvingOrder(kind, diagonal, { kind: 'group', size });
          assert.deepEqual(
            [...order].sort((a, b) => a - b),
            [...diagonal.keys()],
          );
          if (kind !== 'group') continue;
          const groups = solvingGroups(order, { kind: 'group', size });
          for (let i = 0; i < groups.length; i++) assert.equal(groups[i], groups[i - (i % size)]);
        }
      },
    ),
  );
});
