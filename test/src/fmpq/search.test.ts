import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime } from '../../../native/binding.js';
import type { ObservedFeed } from '../../../src/fmpq/observe.js';
import { FMPQ_DEFAULTS } from '../../../src/fmpq/options.js';
import { choosePrecision } from '../../../src/fmpq/precision.js';
import { cost, searchOrder } from '../../../src/fmpq/search.js';
import { f32, Random } from '../../native/support.js';

const rt = createRuntime(2);

/** Rows of noise whose channels under `outliers` are so many times larger. */
function feed(k: number, outliers: readonly number[], factor: number, seed: number, rows = 64): ObservedFeed {
  const random = new Random(seed);
  const x = random.normals(rows * k);
  for (let t = 0; t < rows; t++) for (const c of outliers) x[t * k + c] = (x[t * k + c] as number) * factor;
  const most = new Float32Array(k);
  const moments = new Float64Array(k);
  for (let i = 0; i < x.length; i++) {
    const value = x[i] as number;
    most[i % k] = Math.max(most[i % k] as number, Math.abs(value));
    moments[i % k] = (moments[i % k] as number) + value * value;
  }
  const importance = new Float32Array(k).fill(1 / (rows * k));
  return {
    linears: [{ name: `feed${seed}`, n: 64, k }],
    k,
    rows: f32([rows, k], x),
    most,
    moments,
    tokens: rows,
    importance,
  };
}

test('every search gathers the outliers of two inputs that share an order into one block', async () => {
  const outliers = [3, 130, 131, 300, 511];
  const readings = [1, 2].map((seed) => ({ feed: feed(512, outliers, 40, seed), start: 0 }));
  const kept = await searchOrder(rt, readings, 512, 'none', { share: 0.75 }, 0);
  assert.deepEqual([...kept.order.slice(0, 4)], [0, 1, 2, 3]);
  for (const kind of ['absmax', 'error', 'swap'] as const) {
    const { order, cost: found } = await searchOrder(rt, readings, 512, kind, { share: 0.75 }, 0);
    assert.deepEqual(
      [...order].sort((a, b) => a - b),
      [...kept.order],
      kind,
    );
    const blocks = new Set(outliers.map((channel) => order.indexOf(channel) >> 7));
    assert.equal(blocks.size, 1, `${kind} spreads the outliers over ${blocks.size} blocks`);
    assert.ok(found < kept.cost / 3, `${kind}: ${found}, kept ${kept.cost}`);
  }
});

test('swap is never worse than the sorts, and repeats itself', async () => {
  // Two inputs that disagree about what is large: no single sort suits both.
  const readings = [
    { feed: feed(384, [1, 140, 141, 300], 12, 5), start: 0 },
    { feed: feed(384, [2, 150, 290], 12, 6), start: 0 },
  ];
  const allowance = { share: 0.67 };
  const of = (kind: 'absmax' | 'error' | 'swap') => searchOrder(rt, readings, 384, kind, allowance, 3);
  const [absmax, error, swap, again] = [await of('absmax'), await of('error'), await of('swap'), await of('swap')];
  assert.ok(swap.cost <= Math.min(absmax.cost, error.cost));
  assert.deepEqual(swap, again);
});

test('the objective: errors without the blocks of 8 bits; with a threshold first their number', () => {
  assert.equal(cost([4, 1, 2, 3], { share: 0.5 }), 3);
  assert.equal(cost([4, 1, 2, 3], { share: 1 }), 10);
  assert.equal(Math.floor(cost([4, 1, 2, 3], { threshold: 2.5 })), 2);
  assert.ok(cost([9, 1, 1], { threshold: 2 }) < cost([9, 1.5, 1], { threshold: 2 }));
  assert.ok(cost([9, 1.9, 1.9], { threshold: 2 }) < cost([2.1, 2.1, 0], { threshold: 2 }));
});

test('precision: the blocks with outliers get 8 bits first; shares and thresholds are kept', async () => {
  const feeds = [feed(512, [3, 200], 40, 1), feed(256, [], 1, 2)].map((each) => ({
    feed: each,
    order: Int32Array.from({ length: each.k }, (_, i) => i),
  }));
  const choose = (more: object) => choosePrecision(rt, feeds, { ...FMPQ_DEFAULTS, ...more });
  const half = await choose({ share: 0.6 });
  assert.deepEqual([...(half.forms[0]?.bits ?? [])], [8, 8, 4, 4]);
  assert.deepEqual([...(half.forms[1]?.bits ?? [])], [4, 4]);
  assert.ok(half.share.macs >= 0.6 && half.share.blocks === 4 / 6);
  const [all4, all8] = [await choose({ share: 1 }), await choose({ share: 0 })];
  assert.deepEqual([all4.share.macs, all8.share.macs], [1, 0]);
  assert.ok(all8.error.chosen < half.error.chosen && half.error.chosen < all4.error.chosen);
  assert.equal(all4.error.chosen, all4.error.all4);
  const threshold = half.error.all4 / 6;
  const { forms } = await choose({ threshold });
  assert.deepEqual([...(forms[0]?.bits ?? [])], [8, 8, 4, 4]);
  const unclipped = await choose({ share: 1, clip: false });
  assert.ok(unclipped.forms.every(({ clip }) => clip.every((one) => one === 1)));
  assert.ok(all4.error.chosen < unclipped.error.chosen);
});

test('an input that no calibration row reached keeps 8 bits under a threshold', async () => {
  const unseen = { ...feed(128, [], 1, 4, 0), tokens: 0 };
  const ordered = [{ feed: unseen, order: Int32Array.from({ length: 128 }, (_, i) => i) }];
  const { forms } = await choosePrecision(rt, ordered, { ...FMPQ_DEFAULTS, threshold: 1 });
  assert.deepEqual([...(forms[0]?.bits ?? [])], [8]);
});
