import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { Past } from '../../native/recurrent-ops.js';
import { values } from '../src/model/reference-runtime.js';
import { SELECTED } from '../src/model/reference-selected.js';
import { isFailure, rt } from './runtime-under-test.js';
import { expectClose, f32, i32, poisoned, Random, typed, U32 } from './support.js';

/** Sparse attention against its definition in double precision; in pieces it gives what it gives at once, bit by bit. */

const LENGTHS = [70, 0, 1, 133];
const STARTS = [0, 70, 70, 71, 204];
const TOKENS = 204;
const ROWS = 140;

const failsWith = (words: RegExp, code = 'LPQ_NATIVE_ARGUMENT') =>
  assert.rejects(rt.sync(), (error: { code?: string; message: string }) => isFailure(error, code, words));

/** Whole numbers: their products and sums are exact in f32, in whatever order. */
const whole = (random: Random, columns: number, most: number, by = 1) =>
  f32(
    [TOKENS, columns],
    Float32Array.from({ length: TOKENS * columns }, () => random.integer(-most, most) * by),
  );

const part = (tensor: Tensor, first: number, count: number) => {
  const columns = tensor.shape[1]!;
  return typed<Float32Array>(tensor).slice(first * columns, (first + count) * columns);
};

/** Pieces of up to `size` tokens of each sequence, together: their tokens and where they are kept (slots 4, 3, 2, 1 of 5). */
function* pieces(size: number) {
  for (let past = 0; past < 133; past += size) {
    const live = LENGTHS.flatMap((length, s) => (past < length ? [{ s, count: Math.min(size, length - past) }] : []));
    let end = 0;
    const starts = i32([0, ...live.map(({ count }) => (end += count))]);
    const step = { starts, slots: i32(live.map(({ s }) => 4 - s)), totals: i32(live.map(({ count }) => past + count)) };
    const of = (tensor: Tensor) =>
      f32(
        [end, tensor.shape[1]!],
        Float32Array.from(live.flatMap(({ s, count }) => [...part(tensor, STARTS[s]! + past, count)])),
      );
    const rows = live.flatMap(({ s, count }) => Array.from({ length: count }, (_, i) => STARTS[s]! + past + i));
    yield { step, of, rows, tokens: end };
  }
}

for (const [heads, dim, weighted, block, local, top] of [
  [20, 24, true, 1, 0, 16],
  [2, 8, false, 8, 1, 3],
  [2, 20, false, 5, 2, 2],
] as const)
  test(`index_keys: ${weighted ? 'heads together' : 'each head'}, runs of ${block}, ${local} always`, async () => {
    const random = new Random(3);
    const [q, k] = [whole(random, heads * dim, 200), whole(random, dim, 200)];
    const weights = weighted ? whole(random, heads, 9, 0.25) : undefined;
    const p = { heads, top, block, local };
    const width = (weighted ? 1 : heads) * top;
    const want = poisoned('i32', [TOKENS, width]);
    const inputs = [q, k, ...(weights ? [weights] : []), i32(STARTS)];
    SELECTED.index_keys!(inputs, [want], { ...p, weighted: weighted ? 1 : 0 }, values);
    const y = poisoned('i32', [TOKENS, width]);
    ops.indexKeys(rt, { q, k, weights }, y, { starts: i32(STARTS) }, p);
    await rt.sync();
    assert.deepEqual(typed<Int32Array>(y), typed<Int32Array>(want));
    for (const size of [1, 50]) {
      const state = poisoned('f32', [5, ROWS, dim]);
      for (const { step, of, rows, tokens } of pieces(size)) {
        const got = poisoned('i32', [tokens, width]);
        const past: Past = { starts: step.starts, kept: { slots: step.slots, totals: step.totals, state } };
        ops.indexKeys(rt, { q: of(q), k: of(k), weights: weights && of(weights) }, got, past, p);
        await rt.sync();
        for (const [i, t] of rows.entries())
          assert.deepEqual(
            typed<Int32Array>(got).subarray(i * width, (i + 1) * width),
            typed<Int32Array>(want).subarray(t * width, (t + 1) * width),
            `token ${t}, in pieces of ${size}`,
          );
      }
    }
  });

for (const [heads, kvHeads, headDim, valueDim, choices, block] of [
  [4, 4, 24, 20, 1, 1],
  [4, 2, 16, 16, 2, 8],
] as const)
  test(`selected_attention: ${choices} choices of runs of ${block}`, async () => {
    const random = new Random(5);
    const matrix = (columns: number) => f32([TOKENS, columns], random.normals(TOKENS * columns));
    const [q, k, v] = [matrix(heads * headDim), matrix(kvHeads * headDim), matrix(kvHeads * valueDim)];
    const top = 6;
    // Rising runs that end at the token's own one.
    const rows = LENGTHS.flatMap((length) =>
      Array.from({ length }, (_, index) =>
        Array.from({ length: choices }, () => {
          const own = Math.floor(index / block);
          const others = new Set(Array.from({ length: top - 1 }, () => random.integer(0, own)));
          const chosen = [...others.add(own)].sort((a, b) => a - b);
          return [...chosen, ...Array.from({ length: top - chosen.length }, () => -1)];
        }).flat(),
      ),
    );
    const selected = i32(rows.flat(), [TOKENS, choices * top]);
    const p = { heads, kvHeads, headDim, valueDim, scale: 1 / Math.sqrt(headDim), choices, block };
    const width = heads * valueDim;
    const want = poisoned('f32', [TOKENS, width]);
    SELECTED.selected_attention!([q, k, v, selected, i32(STARTS)], [want], p, values);
    const y = poisoned('f32', [TOKENS, width]);
    ops.selectedAttention(rt, { q, k, v, selected }, y, { starts: i32(STARTS) }, p);
    await rt.sync();
    // Scores are sums of headDim products below 25, over sqrt(headDim): off by headDim U32 * 25 * sqrt(headDim), twice that in shares of
    // their sum; weighted means of values below 5 add a rounding a token.
    const bound = 5 * (2 * headDim * U32 * 25 * Math.sqrt(headDim) + (top * block + 8) * U32);
    expectClose('selected_attention', typed<Float32Array>(y), typed<Float32Array>(want), () => bound);
    for (const size of [1, 50]) {
      const [keys, vs] = [k, v].map((tensor) => poisoned('f32', [5, ROWS, tensor.shape[1]!])) as [Tensor, Tensor];
      for (const { step, of, rows: tokens } of pieces(size)) {
        ops.cacheAppend(rt, of(k), of(v), step, keys, vs);
        const chosen = i32(
          tokens.flatMap((t) => rows[t]!),
          [tokens.length, choices * top],
        );
        const got = poisoned('f32', [tokens.length, width]);
        ops.selectedAttention(rt, { q: of(q), k: keys, v: vs, selected: chosen }, got, step, p);
        await rt.sync();
        for (const [i, t] of tokens.entries())
          assert.deepEqual(part(got, i, 1), part(y, t, 1), `token ${t}, in pieces of ${size}`);
      }
    }
  });

test('index_keys: of equal scores any are chosen, and none that is less', async () => {
  const random = new Random(4);
  const [heads, dim, top] = [2, 4, 7];
  const [q, k, weights] = [whole(random, heads * dim, 1), whole(random, dim, 1), whole(random, heads, 1)];
  const y = poisoned('i32', [TOKENS, top]);
  ops.indexKeys(rt, { q, k, weights }, y, { starts: i32(STARTS) }, { heads, top });
  await rt.sync();
  const [queries, keys, by] = [q, k, weights].map(values) as [Float64Array, Float64Array, Float64Array];
  const scoreOf = (t: number, s: number) =>
    [0, 1].reduce((sum, h) => {
      let product = 0;
      for (let d = 0; d < dim; d++) product += queries[(t * heads + h) * dim + d]! * keys[s * dim + d]!;
      return sum + by[t * heads + h]! * Math.max(0, product);
    }, 0);
  let [t, equals] = [0, 0];
  for (const length of LENGTHS)
    for (let index = 0, first = t; index < length; index++, t++) {
      const chosen = [...typed<Int32Array>(y).subarray(t * top, (t + 1) * top)].filter((s) => s >= 0);
      assert.equal(new Set(chosen).size, Math.min(top, index + 1));
      assert.ok(Math.max(...chosen) <= index);
      const all = Array.from({ length: index + 1 }, (_, s) => scoreOf(t, first + s));
      const best = all.toSorted((a, b) => b - a).slice(0, top);
      if (best.at(-1) === all.toSorted((a, b) => b - a)[top]) equals++;
      assert.deepEqual(
        chosen.map((s) => all[s]!).toSorted((a, b) => b - a),
        best,
      );
    }
  assert.ok(equals > 50, 'there are equal ones to choose from');
});

test('selected_attention reads keys and values of 16 bits', async () => {
  const random = new Random(7);
  const p = { heads: 2, kvHeads: 1, headDim: 8, scale: 1 };
  const [q, keys] = [f32([3, 16], random.normals(48)), random.normals(24)];
  const exact = [f32([3, 8], keys), f32([3, 8], random.normals(24))];
  const halves = exact.map((tensor) => {
    const half = rt.allocate('bf16', tensor.shape);
    ops.cast(rt, tensor, half);
    return half;
  }) as [Tensor, Tensor];
  const wide = halves.map((half) => {
    const tensor = rt.allocate('f32', half.shape);
    ops.cast(rt, half, tensor);
    return tensor;
  }) as [Tensor, Tensor];
  const run = ([k, v]: [Tensor, Tensor]) => {
    const y = poisoned('f32', [3, 16]);
    const selected = i32([0, -1, 1, 0, 0, 2], [3, 2]);
    ops.selectedAttention(rt, { q, k, v, selected }, y, { starts: i32([0, 3]) }, p);
    return y;
  };
  const [got, want] = [run(halves), run(wide)];
  await rt.sync();
  assert.deepEqual(typed(got), typed(want));
});

test('what cannot be indexed or selected is refused', async () => {
  const [q, k, y] = [f32([4, 6], new Float32Array(24)), f32([4, 3], new Float32Array(12)), poisoned('i32', [4, 4])];
  const starts = i32([0, 4]);
  ops.indexKeys(rt, { q, k: f32([4, 2], new Float32Array(8)) }, y, { starts }, { heads: 2, top: 2 });
  await failsWith(/k has the shape \[4,2\]/);
  const kept = (total: number) => ({
    starts,
    kept: { slots: i32([0]), totals: i32([total]), state: poisoned('f32', [1, 6, 3]) },
  });
  ops.indexKeys(rt, { q, k }, y, kept(7), { heads: 2, top: 2 });
  await failsWith(/sequence 0 has length 7, not 4 to 6/);
  const broken = f32([4, 6], new Float32Array(24).fill(Number.NaN));
  ops.indexKeys(rt, { q: broken, k }, y, { starts }, { heads: 2, top: 2 });
  await failsWith(/a score of the indexer is NaN/, 'LPQ_NATIVE_NUMERICS');
  const attend = (selected: Tensor, choices = 1) =>
    ops.selectedAttention(
      rt,
      { q, k, v: k, selected },
      poisoned('f32', [4, 6]),
      { starts },
      {
        ...{ heads: 2, kvHeads: 1, headDim: 3, scale: 1, choices },
      },
    );
  attend(i32([0, 1, 3, 3], [4, 1]));
  await failsWith(/selected has 3 where 3 can be seen/);
  attend(i32([0, -1, 0, 0], [4, 1]));
  await failsWith(/a token of selected sees nothing/);
  attend(i32([0, 1, 2, 3], [4, 1]), 2);
  await failsWith(/choices is 2/);
});
