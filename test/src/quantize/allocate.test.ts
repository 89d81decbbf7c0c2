import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { allocate, type Choice } from '../../../src/quantize/allocate.js';

const sum = (choices: readonly Choice<number>[], of: 'cost' | 'error') =>
  choices.reduce((all, each) => all + each[of], 0);

/** Every combination, by counting. */
function best(units: readonly (readonly Choice<number>[])[], budget: number): number {
  let least = Number.POSITIVE_INFINITY;
  const walk = (at: number, cost: number, error: number): void => {
    if (cost > budget) return;
    if (at === units.length) least = Math.min(least, error);
    else for (const choice of units[at]!) walk(at + 1, cost + choice.cost, error + choice.error);
  };
  walk(0, 0, 0);
  return least;
}

/** Errors fall with the width as rounding's do: a quarter for each bit, about. */
const unit = fc
  .record({ size: fc.integer({ min: 1, max: 50 }), scale: fc.double({ min: 0.01, max: 10, noNaN: true }) })
  .map(({ size, scale }) =>
    [2, 3, 4, 5, 6].map((bits): Choice<number> => ({ value: bits, cost: size * bits, error: scale * 4 ** -bits })),
  );

test('the budget is met, and the error is within one exchange of the best of all combinations', () => {
  fc.assert(
    fc.property(
      fc.array(unit, { minLength: 1, maxLength: 5 }),
      fc.double({ min: 0, max: 1, noNaN: true }),
      (units, share) => {
        const least = units.reduce((all, choices) => all + choices[0]!.cost, 0);
        const most = units.reduce((all, choices) => all + choices.at(-1)!.cost, 0);
        const budget = least + share * (most - least);
        const chosen = allocate(units, budget)!;
        assert.ok(sum(chosen, 'cost') <= budget);
        // A Lagrangian choice is optimal for its own cost; what it can miss is the gain of one unit's next step.
        const step = Math.max(...units.map((choices) => choices[0]!.error - choices[1]!.error));
        assert.ok(sum(chosen, 'error') <= best(units, budget) + step + 1e-12);
      },
    ),
    { numRuns: 300 },
  );
});

test('a mixture beats the same width everywhere at the same cost, unless all units are alike', () => {
  const of = (scale: number) =>
    [2, 3, 4, 5].map((bits): Choice<number> => ({ value: bits, cost: 100 * bits, error: scale * 4 ** -bits }));
  const units = [of(1), of(1), of(64), of(64)];
  const chosen = allocate(units, 1400)!;
  assert.deepEqual(
    chosen.map(({ value }) => value),
    [2, 2, 5, 5],
  );
  assert.ok(sum(chosen, 'error') < units.reduce((all, choices) => all + choices[1]!.error, 0) / 4);
});

test('what no choice can meet is told; what all meet gets the best', () => {
  const units = [
    [
      { value: 2, cost: 20, error: 1 },
      { value: 4, cost: 40, error: 0.1 },
    ],
  ];
  assert.equal(allocate(units, 19), undefined);
  assert.equal(allocate(units, 20)![0]!.value, 2);
  assert.equal(allocate(units, 1e9)![0]!.value, 4);
  // An error that is not a number of the usual size: the cheaper of two equals.
  assert.equal(
    allocate(
      [
        [
          { value: 3, cost: 3, error: 0 },
          { value: 2, cost: 2, error: 0 },
        ],
      ],
      9,
    )![0]!.value,
    2,
  );
});
