import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fromTyped, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { Past } from '../../native/recurrent-ops.js';
import { RECURRENT } from '../src/model/reference-recurrent.js';
import { values } from '../src/model/reference-runtime.js';
import { isFailure, rt } from './runtime-under-test.js';
import { expectClose, f32, i32, poisoned, Random, typed, U32 } from './support.js';

/** Recurrences against a token and a number at a time in double precision; in pieces they give what they give at once, bit by bit. */

const LENGTHS = [70, 0, 1, 133];
const startsOf = (lengths: readonly number[]) => {
  let end = 0;
  return [0, ...lengths.map((length) => (end += length))];
};
const STARTS = startsOf(LENGTHS);
const TOKENS = STARTS.at(-1)!;

const failsWith = (words: RegExp) =>
  assert.rejects(rt.sync(), (error: { code?: string; message: string }) =>
    isFailure(error, 'LPQ_NATIVE_ARGUMENT', words),
  );

type Run = (columns: readonly Tensor[], y: Tensor, past: Past) => void;

/** Rows first .. end of each. */
const rows = (tensors: readonly Tensor[], first: number, end: number) =>
  tensors.map((t) =>
    f32([end - first, t.shape[1]!], typed<Float32Array>(t).slice(first * t.shape[1]!, end * t.shape[1]!)),
  );

/** The four sequences in pieces of `size` tokens, in slots 4, 3, 2, 1, whose states begin as NaN. */
async function inPieces(run: Run, columns: readonly Tensor[], width: number, shape: readonly number[], size: number) {
  const state = poisoned('f32', [5, ...shape]);
  const out = new Float32Array(TOKENS * width);
  for (let past = 0; past < Math.max(...LENGTHS); past += size) {
    const live = LENGTHS.flatMap((length, s) => (past < length ? [{ s, count: Math.min(size, length - past) }] : []));
    const pieces = live.map(({ s, count }) => rows(columns, STARTS[s]! + past, STARTS[s]! + past + count));
    const counts = live.map(({ count }) => count);
    const total = counts.reduce((a, b) => a + b, 0);
    const together = columns.map((column, i) => {
      const data = pieces.flatMap((piece) => Array.from(typed<Float32Array>(piece[i]!)));
      return f32([total, column.shape[1]!], Float32Array.from(data));
    });
    const starts = i32(startsOf(counts));
    const [slots, totals] = [i32(live.map(({ s }) => 4 - s)), i32(live.map(({ count }) => past + count))];
    const y = poisoned('f32', [total, width]);
    run(together, y, { starts, kept: { slots, totals, state } });
    await rt.sync();
    let at = 0;
    for (const { s, count } of live) {
      out.set(typed<Float32Array>(y).subarray(at * width, (at + count) * width), (STARTS[s]! + past) * width);
      at += count;
    }
  }
  return out;
}

async function check(
  name: string,
  run: Run,
  columns: readonly Tensor[],
  width: number,
  shape: readonly number[],
  want: Float32Array,
  bound: (i: number) => number,
): Promise<void> {
  const y = poisoned('f32', [TOKENS, width]);
  run(columns, y, { starts: i32(STARTS) });
  await rt.sync();
  const whole = typed<Float32Array>(y).slice();
  expectClose(name, whole, want, bound);
  for (const size of [1, 64, 50]) {
    const pieces = await inPieces(run, columns, width, shape, size);
    assert.deepEqual(new Uint32Array(pieces.buffer), new Uint32Array(whole.buffer), `in pieces of ${size}`);
  }
}

for (const [act, biased, gates] of [
  ['none', false, true],
  ['silu', true, false],
] as const)
  test(`short_conv: ${act}, ${biased ? 'a bias' : 'no bias'}, ${gates ? 'with factors' : 'plain'}`, async () => {
    const random = new Random(11);
    const [channels, taps] = [300, 4];
    const x = f32([TOKENS, 3 * channels + 1], random.normals(TOKENS * (3 * channels + 1), 1));
    const weight = f32([channels, taps], random.normals(channels * taps, 1));
    const bias = biased ? f32([channels], random.normals(channels, 1)) : undefined;
    const p = { act, first: 2 * channels + 1, ...(gates && { times: 0, gate: channels }) };
    const run: Run = ([part], y, past) => ops.shortConv(rt, part!, { weight, bias }, y, past, p);
    const want = new Float32Array(TOKENS * channels);
    const out = fromTyped('f32', [TOKENS, channels], want);
    RECURRENT.short_conv!(
      [x, weight, ...(bias ? [bias] : []), i32(STARTS)],
      [out],
      { ...p, biased: biased ? 1 : 0 },
      values,
    );
    // Four products of numbers below 5, each factor rounded once in f32; silu is good to some 4 ulp. The factors may reach 5.
    const most = 4 * 5 * 5 * 5;
    await check(
      'short_conv',
      run,
      [x],
      channels,
      [taps - 1, channels],
      typed(out),
      (i) => 8 * U32 * Math.max(most, Math.abs(want[i]!)),
    );
  });

for (const [heads, keyHeads, keyDim, valueDim, byChannel] of [
  [4, 2, 24, 40, false],
  [2, 2, 16, 32, true],
  [4, 2, 128, 72, false],
  [2, 1, 136, 33, true],
] as const)
  test(`gated_delta: a decay a ${byChannel ? 'channel' : 'head'}, values of ${valueDim}`, async () => {
    const random = new Random(13);
    const matrix = (columns: number, by = 1) => f32([TOKENS, columns], random.normals(TOKENS * columns, by));
    const gates = byChannel ? heads * keyDim : heads;
    const columns = [keyHeads * keyDim, keyHeads * keyDim, heads * valueDim, gates, heads].map((n) => matrix(n));
    const [rate, bias] = [f32([heads], random.normals(heads, 1)), f32([gates], random.normals(gates, 1))];
    const p = { heads, keyHeads, keyDim, valueDim, strength: 2 };
    const run: Run = ([q, k, v, decay, beta], y, past) =>
      ops.gatedDelta(rt, { q: q!, k: k!, v: v!, decay: decay!, beta: beta!, rate, bias }, y, past, p);
    const width = heads * valueDim;
    const want = poisoned('f32', [TOKENS, width]);
    RECURRENT.gated_delta!([...columns, rate, bias, i32(STARTS)], [want], p, values);
    // With keys of length 1 and beta below 2 a token's change never grows the state: |S k| <= |S|. Each token rounds it by 2 U32 a sum of
    // keyDim terms at most; states stay below 2 * 5 * sqrt(tokens), and 133 such roundings are added.
    await check(
      'gated_delta',
      run,
      columns,
      width,
      [heads, keyDim, valueDim],
      typed(want),
      () => 133 * keyDim * 2 * U32 * 10,
    );
  });

for (const [heads, headDim, groups, size, byChannel] of [
  [4, 40, 2, 24, false],
  [1, 70, 1, 16, true],
  [2, 8, 2, 5, true],
  [6, 64, 3, 128, false],
] as const)
  test(`selective_scan: a step a ${byChannel ? 'channel' : 'head'}, ${heads} heads of ${headDim}`, async () => {
    const random = new Random(17);
    const matrix = (columns: number, by = 1) => f32([TOKENS, columns], random.normals(TOKENS * columns, by));
    const gates = byChannel ? heads * headDim : heads;
    const columns = [heads * headDim, groups * size, groups * size, gates].map((n) => matrix(n));
    const rate = byChannel
      ? f32([gates, size], random.normals(gates * size, 1))
      : f32([heads], random.normals(heads, 1));
    const [bias, skip] = [f32([gates], random.normals(gates, 1)), f32([gates], random.normals(gates, 1))];
    const p = { heads, headDim, groups, size, least: 0.01, most: 2 };
    const run: Run = ([x, b, c, step], y, past) =>
      ops.selectiveScan(rt, { x: x!, b: b!, c: c!, step: step!, rate, bias, skip }, y, past, p);
    const width = heads * headDim;
    const want = poisoned('f32', [TOKENS, width]);
    RECURRENT.selective_scan!([...columns, rate, bias, skip, i32(STARTS)], [want], p, values);
    // A token adds d B x to a state that shrinks by exp(-exp(rate) d): |S| is below max|B x| / min(1, exp(rate)) = 5 * 5 * e^3 of
    // normals, and each token rounds it by 4 U32 (decay, its exponential, product and sum), of which no more than some e^3 / 0.01 tokens
    // count, 133 at most. y sums `size` of them times |C| <= 5.
    const most = 5 * 5 * Math.E ** 3;
    await check(
      'selective_scan',
      run,
      columns,
      width,
      [heads, size, headDim],
      typed(want),
      () => (133 * 4 + size) * U32 * most * 5,
    );
  });

test('selective_scan refuses heads, steps and bounds that do not fit', async () => {
  const [y, past] = [poisoned('f32', [4, 12]), { starts: i32([0, 4]) }];
  const of = (heads: number, width: number) => ({
    x: poisoned('f32', [4, 12]),
    b: poisoned('f32', [4, 10]),
    c: poisoned('f32', [4, 10]),
    step: poisoned('f32', [4, width]),
    rate: width === heads ? poisoned('f32', [heads]) : poisoned('f32', [12, 5]),
    bias: poisoned('f32', [width]),
    skip: poisoned('f32', [width]),
  });
  ops.selectiveScan(rt, of(3, 3), y, past, { heads: 3, headDim: 4, groups: 2, size: 5 });
  await failsWith(/heads is 3, not a multiple of groups = 2/);
  ops.selectiveScan(rt, of(2, 5), y, past, { heads: 2, headDim: 6, groups: 2, size: 5 });
  await failsWith(/step has 5 columns, neither one a head nor one a channel/);
  ops.selectiveScan(rt, of(2, 2), y, past, { heads: 2, headDim: 6, groups: 2, size: 5, least: 2, most: 1 });
  await failsWith(/least is not from 0 to most/);
});

test('gated_delta refuses heads and decays that do not fit', async () => {
  const t = {
    q: poisoned('f32', [4, 8]),
    k: poisoned('f32', [4, 8]),
    v: poisoned('f32', [4, 12]),
    beta: poisoned('f32', [4, 3]),
  };
  const [rate, y, past] = [poisoned('f32', [3]), poisoned('f32', [4, 12]), { starts: i32([0, 4]) }];
  const of = (width: number) => ({ ...t, decay: poisoned('f32', [4, width]), bias: poisoned('f32', [width]), rate });
  ops.gatedDelta(rt, of(3), y, past, { heads: 3, keyHeads: 2, keyDim: 4, valueDim: 4 });
  await failsWith(/heads is 3, not a multiple of keyHeads = 2/);
  ops.gatedDelta(rt, { ...of(5), q: poisoned('f32', [4, 8]) }, y, past, {
    heads: 3,
    keyHeads: 1,
    keyDim: 8,
    valueDim: 4,
  });
  await failsWith(/decay has 5 columns, neither one a head nor one a channel of the keys/);
});

test('what a recurrence cannot go on from is refused', async () => {
  const [x, weight, y] = [poisoned('f32', [4, 6]), poisoned('f32', [6, 3]), poisoned('f32', [4, 6])];
  const conv = (past: Past, first = 0) => ops.shortConv(rt, x, { weight }, y, past, { act: 'none', first });
  const kept = (slots: number[], totals: number[], state = poisoned('f32', [2, 2, 6])) => ({
    starts: i32([0, 1, 4]),
    kept: { slots: i32(slots), totals: i32(totals), state },
  });
  const cases: [Past, RegExp][] = [
    [{ starts: i32([0, 3]) }, /starts does not run from 0 to the number of tokens, 4/],
    [{ starts: i32([0, 3, 2, 4]) }, /starts falls after sequence 1/],
    [kept([0, 2], [1, 3]), /sequence 1 has slot 2 of 2/],
    [kept([1, 1], [1, 3]), /sequence 1 has the slot of another/],
    [kept([0, 1], [1, 2]), /sequence 1 has length 2, less than its new tokens/],
    [kept([0, 1], [1, 3], poisoned('f32', [2, 3, 6])), /state/],
  ];
  for (const [past, words] of cases) {
    conv(past);
    await failsWith(words);
  }
  conv({ starts: i32([0, 4]) }, 1);
  await failsWith(/x has 6 columns, not 6 from column 1 on/);
});
