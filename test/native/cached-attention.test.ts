import assert from 'node:assert/strict';
import { test } from 'node:test';
import { allocate, createRuntime, type DType, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { f32, i32, poisoned, Random, typed } from './support.js';

const rt = createRuntime(2);

interface Case {
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly valueDim: number;
  readonly window?: number;
  readonly softCap?: number;
  readonly sinks?: boolean;
  readonly dtype: DType;
}

/** Tokens that sequences have before a step and get in it; 84 queries and 128 keys are what the operation works on at once. */
const STEPS: readonly (readonly (readonly [slot: number, past: number, count: number])[])[] = [
  [
    [2, 0, 5],
    [0, 0, 131],
  ],
  [
    [0, 131, 1],
    [2, 5, 1],
  ],
  [
    [1, 0, 90],
    [2, 6, 84],
    [0, 132, 0],
  ],
  [
    [0, 132, 130],
    [1, 90, 1],
  ],
];
const ROWS = 270;

const plain: Case = { heads: 4, kvHeads: 2, headDim: 24, valueDim: 24, dtype: 'f32' };
for (const c of [
  plain,
  { ...plain, dtype: 'f16' },
  { ...plain, dtype: 'bf16', headDim: 33, valueDim: 17 },
  { ...plain, window: 37, sinks: true },
  { ...plain, heads: 3, kvHeads: 3, softCap: 5 },
] as const satisfies readonly Case[])
  test(`new tokens over kept ones are attention over all at once, bit by bit: ${JSON.stringify(c)}`, async () => {
    const random = new Random(7);
    const { heads, kvHeads, headDim, valueDim } = c;
    const widths = { q: heads * headDim, k: kvHeads * headDim, v: kvHeads * valueDim };
    const sequences = [0, 1, 2].map(() => ({
      q: random.normals(ROWS * widths.q),
      k: random.normals(ROWS * widths.k),
      v: random.normals(ROWS * widths.v),
    }));
    const p = { heads, kvHeads, headDim, valueDim, scale: 0.3, window: c.window ?? 0, softCap: c.softCap ?? 0 };
    const sinks = c.sinks ? f32([heads], random.normals(heads)) : undefined;
    const keys = poisoned(c.dtype, [3, ROWS, widths.k]);
    const values = poisoned(c.dtype, [3, ROWS, widths.v]);
    const read = (x: Float32Array, width: number, rows: number): Tensor => {
      const tensor = f32([rows, width], x.slice(0, rows * width));
      if (c.dtype === 'f32') return tensor;
      const narrow = allocate(c.dtype, tensor.shape);
      ops.cast(rt, tensor, narrow);
      ops.cast(rt, narrow, tensor);
      return tensor;
    };
    for (const step of STEPS) {
      const tokens = step.reduce((sum, [, , count]) => sum + count, 0);
      const rows = (side: 'q' | 'k' | 'v'): Tensor => {
        const all = step.flatMap(([slot, past, count]) => [
          ...sequences[slot]![side].subarray(past * widths[side], (past + count) * widths[side]),
        ]);
        return f32([tokens, widths[side]], Float32Array.from(all));
      };
      const ends = step.map((_, s) => step.slice(0, s + 1).reduce((sum, [, , count]) => sum + count, 0));
      const at = {
        starts: i32([0, ...ends]),
        slots: i32(step.map(([slot]) => slot)),
        totals: i32(step.map(([, past, count]) => past + count)),
      };
      ops.cacheAppend(rt, rows('k'), rows('v'), at, keys, values);
      const y = poisoned('f32', [tokens, heads * valueDim]);
      ops.cachedAttention(rt, rows('q'), keys, values, at, y, { ...p, most: 131, longest: ROWS }, sinks);
      await rt.sync();
      for (const [s, [slot, past, count]] of step.entries()) {
        const total = past + count;
        const { q, k, v } = sequences[slot]!;
        const want = poisoned('f32', [total, heads * valueDim]);
        ops.attention(
          rt,
          f32([total, widths.q], q.slice(0, total * widths.q)),
          read(k, widths.k, total),
          read(v, widths.v, total),
          i32([0, total]),
          want,
          p,
          sinks,
        );
        await rt.sync();
        const width = heads * valueDim;
        const first = (ends[s]! - count) * width;
        assert.deepEqual(typed(y).slice(first, first + count * width), typed(want).slice(past * width));
      }
    }
  });

test('sequences that do not fit their slots are refused', async () => {
  const q = f32([2, 8], new Float32Array(16));
  const [keys, values] = [allocate('f32', [2, 4, 8]), allocate('f32', [2, 4, 8])];
  const p = { heads: 1, kvHeads: 1, headDim: 8, scale: 1, most: 2, longest: 4 };
  const run = async (slots: number[], totals: number[], most = 2, starts = [0, 2]) => {
    const at = { starts: i32(starts), slots: i32(slots), totals: i32(totals) };
    ops.cachedAttention(rt, q, keys, values, at, allocate('f32', [2, 8]), { ...p, most });
    await rt.sync();
  };
  const refuses = (work: Promise<void>, words: RegExp) => assert.rejects(work, words);
  await refuses(run([2], [2]), /sequence 0 has slot 2 of 2/);
  await refuses(run([-1], [2]), /sequence 0 has slot -1/);
  await refuses(run([0], [1]), /sequence 0 has length 1, not 2 to 4/);
  await refuses(run([0], [5]), /sequence 0 has length 5, not 2 to 4/);
  await refuses(run([0], [2], 1), /more tokens than most/);
  await refuses(run([0], [2], 2, [0, 1]), /starts does not run/);
});
