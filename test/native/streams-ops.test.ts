import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fromTyped, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { values } from '../src/model/reference-runtime.js';
import { SELECTED } from '../src/model/reference-selected.js';
import { STREAMS } from '../src/model/reference-streams.js';
import { isFailure, rt, steps } from './runtime-under-test.js';
import { expectClose, f32, i32, poisoned, Random, typed, U32 } from './support.js';

/** Compressed attention, hyper-connections and routing by roots against their definitions in double precision. */

const LENGTHS = [70, 0, 1, 33];
const STARTS = [0, 70, 70, 71, 104];
const TOKENS = 104;
const runsOf = (rate: number) => LENGTHS.reduce((sum, length) => sum + Math.floor(length / rate), 0);
const matrix = (random: Random, rows: number, columns: number) => f32([rows, columns], random.normals(rows * columns));
const failsWith = (words: RegExp, code = 'LPQ_NATIVE_ARGUMENT') =>
  assert.rejects(rt.sync(), (error: { code?: string; message: string }) => isFailure(error, code, words));

for (const [rate, series] of [
  [16, 1],
  [4, 2],
] as const)
  test(`compress: runs of ${rate}, ${series === 2 ? 'beside those before' : 'alone'}`, async () => {
    const random = new Random(21);
    const dim = 12;
    const [x, gate] = [matrix(random, TOKENS, series * dim), matrix(random, TOKENS, series * dim)];
    const bias = matrix(random, rate, series * dim);
    const starts = i32(STARTS);
    const [y, want] = [poisoned('f32', [runsOf(rate), dim]), poisoned('f32', [runsOf(rate), dim])];
    STREAMS.compress!([x, gate, bias, starts], [want], { rate }, values);
    ops.compress(rt, { x, gate, bias }, y, { starts }, { rate });
    await rt.sync();
    // Means of numbers below 5, in double, rounded once; in f32 shares of logits below 10 (that many roundings, and of exp), and two sums of
    // up to 2 rate terms.
    expectClose(
      'compress',
      typed<Float32Array>(y),
      typed<Float32Array>(want),
      () => 5 * 2 * U32 * steps(16 + 4 * rate),
    );
  });

for (const [rate, top] of [
  [0, 0],
  [16, 0],
  [4, 3],
] as const)
  test(`compressed_attention: ${rate === 0 ? 'a window' : `runs of ${rate}`}${top > 0 ? ', chosen' : ''}`, async () => {
    const random = new Random(22);
    const [heads, dim, window] = [3, 20, 9];
    const entries = rate === 0 ? 0 : runsOf(rate);
    const [q, k, older] = [
      matrix(random, TOKENS, heads * dim),
      matrix(random, TOKENS, dim),
      matrix(random, entries, dim),
    ];
    const [sinks, starts] = [f32([heads], random.normals(heads)), i32(STARTS)];
    const chosen = LENGTHS.flatMap((length) =>
      Array.from({ length }, (_, index) => {
        const full = rate > 0 ? Math.floor((index + 1) / rate) : 0;
        const some = [...new Set(Array.from({ length: top }, () => random.integer(-1, full - 1)))];
        return Array.from({ length: top }, (_, i) => some[i] ?? -1);
      }).flat(),
    );
    const selected = top > 0 ? i32(chosen, [TOKENS, top]) : undefined;
    const p = { heads, window, rate, scale: 1 / Math.sqrt(dim) };
    const [y, want] = [poisoned('f32', q.shape), poisoned('f32', q.shape)];
    STREAMS.compressed_attention!([q, k, older, sinks, starts, ...(selected ? [selected] : [])], [want], p, values);
    ops.compressedAttention(rt, { q, k, entries: older, sinks, selected }, y, { starts }, p);
    await rt.sync();
    // As of selected_attention: scores off by dim U32 * 25 * sqrt(dim), twice that in shares; a rounding each of at most 26 rows.
    const bound = 5 * (2 * dim * U32 * 25 * Math.sqrt(dim) + 34 * U32);
    expectClose('compressed_attention', typed<Float32Array>(y), typed<Float32Array>(want), () => bound);
  });

test('index_keys: keys of full runs', async () => {
  const random = new Random(23);
  const whole = (rows: number, columns: number, most: number) =>
    f32(
      [rows, columns],
      Float32Array.from({ length: rows * columns }, () => random.integer(-most, most)),
    );
  const p = { heads: 16, top: 3, rate: 4 };
  const [q, k, weights] = [whole(TOKENS, 16 * 8, 200), whole(runsOf(4), 8, 200), whole(TOKENS, 16, 9)];
  const [y, want] = [poisoned('i32', [TOKENS, 3]), poisoned('i32', [TOKENS, 3])];
  SELECTED.index_keys!([q, k, weights, i32(STARTS)], [want], { ...p, weighted: 1 }, values);
  ops.indexKeys(rt, { q, k, weights }, y, { starts: i32(STARTS) }, p);
  await rt.sync();
  assert.deepEqual(typed<Int32Array>(y), typed<Int32Array>(want));
});

test('hyper_weights, hyper_collapse, hyper_expand: four streams, and the last of them', async () => {
  const random = new Random(24);
  const [tokens, streams, width] = [37, 4, 24];
  const [w, base, scale] = [matrix(random, tokens, 24), f32([24], random.normals(24)), f32([3], random.normals(3))];
  const shapes = [
    [tokens, 4],
    [tokens, 4],
    [tokens, 16],
  ];
  const [got, want] = [shapes, shapes].map((all) => all.map((shape) => poisoned('f32', shape)));
  const p = { streams, iterations: 20, eps: 1e-6 };
  STREAMS.hyper_weights!([w, base, scale], want!, p, values);
  const [pre, post, mix] = got as [Tensor, Tensor, Tensor];
  ops.hyperWeights(rt, { w, base, scale }, { pre, post, mix }, p);
  await rt.sync();
  // In double, rounded once; all at most 2.
  for (const [i, name] of ['pre', 'post', 'mix'].entries())
    expectClose(name, typed<Float32Array>(got![i]!), typed<Float32Array>(want![i]!), () => 2 * 2 * U32);
  const [x, made] = [matrix(random, tokens, streams * width), matrix(random, tokens, width)];
  const pairs = [
    [poisoned('f32', made.shape), poisoned('f32', made.shape)],
    [poisoned('f32', x.shape), poisoned('f32', x.shape)],
  ] as const;
  STREAMS.hyper_collapse!([x, pre], [pairs[0][1]], {}, values);
  STREAMS.hyper_expand!([x, made, post, mix], [pairs[1][1]], {}, values);
  ops.hyperCollapse(rt, x, pre, pairs[0][0]);
  ops.hyperExpand(rt, x, { made, post, mix }, pairs[1][0]);
  const [last, head] = [poisoned('f32', [tokens, 4]), poisoned('f32', [tokens, 4])];
  const parts = [
    f32([tokens, 4], random.normals(4 * tokens)),
    f32([4], random.normals(4)),
    f32([1], random.normals(1)),
  ];
  STREAMS.hyper_weights!(parts, [head], p, values);
  ops.hyperWeights(rt, { w: parts[0]!, base: parts[1]!, scale: parts[2]! }, { pre: last }, p);
  await rt.sync();
  // Five products below 10, each and each sum rounded once.
  for (const [y, exact] of pairs)
    expectClose('streams', typed<Float32Array>(y), typed<Float32Array>(exact), () => 50 * 10 * U32);
  expectClose('head', typed<Float32Array>(last), typed<Float32Array>(head), () => 2 * U32);
});

test('limited_gate and route_root', async () => {
  const random = new Random(25);
  const [gate, up] = [matrix(random, 40, 30), matrix(random, 40, 30)];
  const [y, want] = [poisoned('f32', gate.shape), poisoned('f32', gate.shape)];
  STREAMS.limited_gate!([gate, up], [want], { limit: 1.5 }, values);
  ops.limitedGate(rt, gate, up, y, { limit: 1.5 });
  await rt.sync();
  // SiLU is good to some 4 ulp of a number below 5 times one below 1.5.
  expectClose('limited_gate', typed<Float32Array>(y), typed<Float32Array>(want), () => 5 * 1.5 * 8 * U32);
  const logits = matrix(random, 40, 6);
  const bias = f32([6], random.normals(6, 0.3));
  const ids = i32(Array.from({ length: 40 }, () => random.integer(0, 9)));
  const table = fromTyped(
    'i64',
    [10, 2],
    BigInt64Array.from({ length: 20 }, (_, i) => BigInt((i * 7) % 6)),
  );
  for (const by of [{ bias }, { ids, table }]) {
    const out = () => ({ indices: poisoned('i32', [40, 2]), weights: poisoned('f32', [40, 2]) });
    const [got, exact] = [out(), out()];
    const p = { k: 2, scale: 1.5 };
    STREAMS.route_root!(
      [logits, ...Object.values(by)],
      [exact.indices, exact.weights],
      { ...p, biased: 'bias' in by ? 1 : 0, hashed: 'bias' in by ? 0 : 1 },
      values,
    );
    ops.routeRoot(rt, { logits, ...by }, got, p);
    await rt.sync();
    assert.deepEqual(typed<Int32Array>(got.indices), typed<Int32Array>(exact.indices));
    expectClose(
      'weights',
      typed<Float32Array>(got.weights),
      typed<Float32Array>(exact.weights),
      () => 1.5 * 4 * U32 * steps(8),
    );
  }
});

for (const [rate, series, top] of [
  [5, 1, 0],
  [4, 2, 2],
] as const)
  test(`runs of ${rate}: a sequence in pieces gives what it gives at once, bit by bit`, async () => {
    const random = new Random(29);
    const [tokens, dim, heads, window] = [31, 8, 3, 6];
    const width = series * dim;
    const [x, gate, k, q] = [width, width, dim, heads * dim].map((columns) => matrix(random, tokens, columns)) as [
      Tensor,
      Tensor,
      Tensor,
      Tensor,
    ];
    const [bias, sinks] = [matrix(random, rate, width), f32([heads], random.normals(heads))];
    const weights = matrix(random, tokens, heads);
    const full = Math.floor(tokens / rate);
    const p = { heads, window, rate, scale: 0.3 };
    const make = (count: number, columns: number) => poisoned('f32', [count, columns]);
    const whole = {
      entries: make(full, dim),
      y: make(tokens, heads * dim),
      chosen: poisoned('i32', [tokens, top || 1]),
    };
    const all = { starts: i32([0, tokens]) };
    ops.compress(rt, { x, gate, bias }, whole.entries, all, { rate });
    const index = { heads, top: top || 1, rate };
    ops.indexKeys(rt, { q, k: whole.entries, weights }, whole.chosen, all, index);
    const seen = { sinks, ...(top > 0 && { selected: whole.chosen }) };
    ops.compressedAttention(rt, { q, k, entries: whole.entries, ...seen }, whole.y, all, p);
    await rt.sync();

    // Slot 1 of two, in rows that hold a few more, after another sequence was there.
    const held = (rows: number, columns: number) =>
      f32([2, rows, columns], new Float32Array(2 * rows * columns).fill(9));
    const kept = {
      ring: held(series * rate, 2 * width),
      keys: held(40, dim),
      entries: held(8, dim),
      index: held(8, dim),
    };
    let at = 0;
    for (const count of [7, 1, 1, 1, 9, 1, 11]) {
      const [slots, totals] = [i32([1]), i32([at + count])];
      const past = (state: Tensor, runs?: { from: number; to: number }) => ({
        starts: i32([0, runs ? runs.to - runs.from : count]),
        kept: { slots, totals: runs ? i32([runs.to]) : totals, state },
      });
      const part = (of: Tensor, columns: number) => of.view([count, columns], at * columns);
      const runs = { from: Math.floor(at / rate), to: Math.floor((at + count) / rate) };
      const entries = make(runs.to - runs.from, dim);
      ops.compress(rt, { x: part(x, width), gate: part(gate, width), bias }, entries, past(kept.ring), { rate });
      if (runs.to > runs.from) ops.appendRows(rt, entries, past(kept.entries, runs));
      ops.appendRows(rt, part(k, dim), past(kept.keys));
      const chosen = poisoned('i32', [count, top || 1]);
      const queries = part(q, heads * dim);
      ops.indexKeys(rt, { q: queries, k: entries, weights: part(weights, heads) }, chosen, past(kept.index), index);
      const y = make(count, heads * dim);
      const step = { starts: i32([0, count]), slots, totals };
      const reads = { q: queries, k: kept.keys, entries: kept.entries, sinks, ...(top > 0 && { selected: chosen }) };
      ops.compressedAttention(rt, reads, y, step, p);
      await rt.sync();
      assert.deepEqual(typed(entries), typed(whole.entries).slice(runs.from * dim, runs.to * dim));
      const columns = heads * dim;
      assert.deepEqual(typed(y), typed(whole.y).slice(at * columns, (at + count) * columns), `from token ${at}`);
      at += count;
    }
    assert.equal(at, tokens);
  });

test('rows that do not hold a sequence are refused', async () => {
  const [x, state] = [f32([2, 2], new Float32Array(4)), f32([1, 3, 2], new Float32Array(6))];
  ops.appendRows(rt, x, { starts: i32([0, 2]), kept: { slots: i32([0]), totals: i32([4]), state } });
  await failsWith(/sequence 0 has length 4, more than 3 rows/);
});

test('what has no entries, streams or experts is refused', async () => {
  const starts = i32([0, 4]);
  const [x, bias] = [f32([4, 2], new Float32Array(8)), f32([2, 2], new Float32Array(4))];
  ops.compress(rt, { x, gate: x, bias }, poisoned('f32', [1, 2]), { starts }, { rate: 2 });
  await failsWith(/there are 1 entries, not 2/);
  const sinks = f32([1], new Float32Array(1));
  const attend = (selected: Tensor) =>
    ops.compressedAttention(
      rt,
      { q: x, k: x, entries: bias, sinks, selected },
      poisoned('f32', [4, 2]),
      { starts },
      { heads: 1, window: 2, rate: 2, scale: 1 },
    );
  attend(i32([-1, 0, 1, 1], [4, 1]));
  await failsWith(/selected has 1 where 1 can be seen/);
  const weights = { w: f32([4, 8], new Float32Array(32)), base: f32([8], new Float32Array(8)), scale: sinks };
  ops.hyperWeights(rt, weights, { pre: poisoned('f32', [4, 2]) }, { streams: 2, eps: 1e-6 });
  await failsWith(/scale has the shape \[1\], not \[3\]/);
  const logits = f32([1, 2], new Float32Array(2));
  const out = { indices: poisoned('i32', [1, 1]), weights: poisoned('f32', [1, 1]) };
  const hashed = (id: number, expert: number) =>
    ops.routeRoot(rt, { logits, ids: i32([id]), table: i32([expert], [1, 1]) }, out, { k: 1, scale: 1 });
  hashed(1, 0);
  await failsWith(/the table has no id 1/);
  hashed(0, 2);
  await failsWith(/the table names expert 2/);
  ops.routeRoot(rt, { logits: f32([1, 2], Float32Array.of(Number.NaN, 0)) }, out, { k: 1, scale: 1 });
  await failsWith(/a share of an expert is NaN/, 'LPQ_NATIVE_NUMERICS');
});
