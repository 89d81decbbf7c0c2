import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type BlockCost, trialBlocks } from '../../../src/quantize/block-kinds.js';
import { extrapolate, lineThrough, type Trial } from '../../../src/quantize/extrapolate.js';
import { scaleSeconds } from '../../../src/tune/scales/trial.js';

const cost = (kind: string, products = 10): BlockCost => ({ kind, products, quantized: true });
const many = (count: number, kind = 'a') => Array.from({ length: count }, () => cost(kind));
const none = { seconds: 0, fixed: 0 };
const all = { mine: () => true, modelSize: 0, bytes: 0 };

function near(got: number, truth: number): void {
  assert.ok(Math.abs(got - truth) < 1e-9, `${got}, not ${truth}`);
}

test('what is paid once counts once, a block as the median of those behind it that have one behind them', () => {
  // Two seconds to begin with, 1.5 once in the first block; the last has none to read ahead.
  const times = { blocks: [0, 1, 2, 3], ends: [4.5, 5.5, 6.6, 7.2], steps: [], end: 7.3 };
  const found = extrapolate([{ times, prepared: none, bytes: 100 }], { ...all, costs: many(32), bytes: 400 });
  near(found.seconds, 4.5 + 31 * 1.05 + 4 * 0.1);
  near(found.block.seconds, 1.05);
});

test('blocks of each kind have their own time, those of no trial that of their products', () => {
  const costs = [cost('dense'), ...many(10, 'experts'), ...many(4, 'other').map((each) => ({ ...each, products: 5 }))];
  const times = { blocks: [0, 1, 2, 3], ends: [1, 4, 7, 10], steps: [] };
  const { seconds, block } = extrapolate([{ times, prepared: none, bytes: 1 }], { ...all, costs });
  near(seconds, 1 + 10 * 3 + 4 * 1.5);
  near(block.seconds, 3);
});

test('a second trial has the medians, the first what is paid once, and preparing grows with the blocks', () => {
  const first = { blocks: [0, 1, 2], ends: [3, 4, 5], steps: [], end: 5 };
  const second = { blocks: [0, 1, 2, 3, 4], ends: [0.6, 1.1, 1.6, 2.1, 2.4], steps: [], end: 2.4 };
  const trials: Trial[] = [
    { times: first, prepared: { seconds: 9, fixed: 8 }, bytes: 1 },
    { times: second, prepared: { seconds: 2, fixed: 1 }, bytes: 1 },
  ];
  const costs = many(20);
  near(extrapolate(trials, { ...all, costs }).seconds, 1 + 4 + 3 + 19 * 0.5);
  // A part of two: every second block.
  const mine = (block: number) => block % 2 === 1;
  near(extrapolate(trials, { ...all, costs, mine }).seconds, 1 + 2 + 2.5 + 10 * 0.5);
});

test('the head counts once; blocks in which nothing is done count nothing; no trial of an end, no end', () => {
  const costs = [{ ...cost('idle'), products: 0, quantized: false }, ...many(9)];
  const times = { blocks: [0, 1, 2, 3], ends: [undefined, 2, 3, 4], head: 6, steps: [] };
  near(extrapolate([{ times, prepared: none, bytes: 1 }], { ...all, costs, bytes: 50 }).seconds, 2 + 8 * 1 + 2);
});

test('steps on the whole model grow along a line, or through 0 where it makes no sense', () => {
  const at = (size: number, seconds: number) => ({ size, seconds });
  near(lineThrough([at(1, 3), at(5, 7)], 11), 13);
  near(lineThrough([at(4, 8)], 12), 24);
  near(lineThrough([at(1, 9), at(4, 8)], 12), 24);
  near(lineThrough([at(1, 1), at(4, 8)], 12), 24);
  // Ten steps of 2 s; the first has read weights for 4 s and taken ten batches at 0.1 s; a look takes 8 batches of 0.1 s.
  const times = { before: 7, each: [7, ...Array(9).fill(2)], after: 0.8 };
  near(scaleSeconds(times, 10, 20), 7 + 25 + 0.8);
  near(scaleSeconds(times, 40, 20), 7 + 40 * 2.1 + 2 * 4 + 4 * 0.8);
});

test('a trial has the first block, each kind that matters, and one behind it', () => {
  assert.deepEqual(trialBlocks(many(32), true), [0, 1, 2, 3]);
  assert.deepEqual(trialBlocks(many(3), true), [0, 1, 2]);
  assert.deepEqual(trialBlocks(many(32), true, 7), [0, 1, 2, 3, 4, 5, 6]);
  assert.deepEqual(trialBlocks([...many(3, 'dense'), ...many(29, 'experts')], true), [0, 1, 3, 4]);
  const hybrid = Array.from({ length: 24 }, (_, i) => cost(i % 6 === 5 ? 'full' : 'local'));
  assert.deepEqual(trialBlocks(hybrid, true), [0, 1, 5, 6]);
  assert.deepEqual(trialBlocks(hybrid, false), [0, 1, 2, 3, 4, 5, 6]);
  const skipped = many(32).map((each, i) => ({ ...each, kind: `${i === 9}`, quantized: i === 9 }));
  assert.deepEqual(trialBlocks(skipped, true), [0, 1, 9, 10]);
});
