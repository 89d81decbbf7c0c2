import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { expectClose, f32, i32, poisoned, Random, typed, U32, U64 } from './support.js';

const rt = createRuntime(2);

test('routing: the k largest shares, ties to the lower index', async () => {
  const random = new Random(6);
  for (const normalize of [true, false]) {
    const [t, experts, k] = [50, 37, 5];
    // Few distinct values, so that ties abound.
    const logits = Float32Array.from({ length: t * experts }, () => random.integer(-6, 6) / 2);
    const indices = poisoned('i32', [t, k]);
    const weights = poisoned('f32', [t, k]);
    ops.routeTopK(rt, f32([t, experts], logits), indices, weights, { k, normalize });
    await rt.sync();
    for (let row = 0; row < t; row++) {
      const values = [...logits.subarray(row * experts, (row + 1) * experts)];
      const order = values.map((_, e) => e).sort((p, q) => values[q]! - values[p]! || p - q);
      const exps = values.map((v) => Math.exp(v));
      const chosen = order.slice(0, k);
      const total = (normalize ? chosen.map((e) => exps[e]!) : exps).reduce((p, q) => p + q, 0);
      assert.deepEqual([...typed<Int32Array>(indices).slice(row * k, row * k + k)], chosen);
      const want = chosen.map((e) => exps[e]! / total);
      // exp 3 units, at most 7 additions in a chain of the sum, quotient; twice for the normalisation.
      expectClose('weights', typed(weights).slice(row * k, row * k + k), want, (i) => 24 * U32 * want[i]!);
    }
  }
});

test('grouping, gathering and scattering by expert undo each other', async () => {
  const random = new Random(7);
  const [t, k, experts, c] = [61, 3, 9, 130];
  const choice = Array.from({ length: t * k }, () => random.integer(0, experts - 2)); // the last expert gets nothing
  const rows = poisoned('i32', [t * k]);
  const offsets = poisoned('i32', [experts + 1]);
  ops.groupByExpert(rt, i32(choice, [t, k]), rows, offsets, { experts });
  const x = random.normals(t * c);
  const gathered = poisoned('f32', [t * k, c]);
  ops.gatherRows(rt, f32([t, c], x), rows, gathered, { divide: k });
  const weights = random.normals(t * k);
  const y = f32([t, c], random.normals(t * c));
  const want = typed(y).slice();
  ops.scatterAddRows(rt, gathered, rows, f32([t, k], weights), y, { divide: k });
  await rt.sync();
  const wantRows = choice.map((_, i) => i).sort((p, q) => choice[p]! - choice[q]! || p - q);
  assert.deepEqual([...typed<Int32Array>(rows)], wantRows);
  const wantOffsets = Array.from({ length: experts + 1 }, (_, e) => choice.filter((v) => v < e).length);
  assert.deepEqual([...typed<Int32Array>(offsets)], wantOffsets);
  wantRows.forEach((row, m) => {
    const token = Math.floor(row / k);
    for (let j = 0; j < c; j++) {
      assert.equal(typed(gathered)[m * c + j], x[token * c + j]);
      want[token * c + j] = want[token * c + j]! + Math.fround(x[token * c + j]! * weights[row]!);
    }
  });
  assert.deepEqual(typed(y), want); // two roundings in a stated order: exact
});

test('negative log-likelihood in f64, 0 where there is no target', async () => {
  const random = new Random(8);
  for (const [t, v] of [
    [5, 1],
    [40, 17],
    [9, 3001],
  ] as const) {
    const logits = random.normals(t * v, 6);
    logits[0] = -2000; // its exponential is 0
    const targets = Array.from({ length: t }, (_, i) => (i === 3 ? -1 : random.integer(0, v - 1)));
    const nll = poisoned('f64', [t]);
    ops.negLogLikelihood(rt, f32([t, v], logits), i32(targets), nll);
    await rt.sync();
    const want = targets.map((target, row) => {
      if (target < 0) return 0;
      const values = logits.subarray(row * v, (row + 1) * v);
      const most = values.reduce((p, q) => Math.max(p, q));
      return Math.log(values.reduce((sum, x) => sum + Math.exp(x - most), 0)) - (values[target]! - most);
    });
    // exp 4 units a term, the sum at most v/16 + 4 units here and v in the reference, logarithm and difference 2 more.
    expectClose('nll', typed<Float64Array>(nll), want, (i) => (2 * v + 20) * U64 * (1 + Math.abs(want[i]!)));
  }
});
