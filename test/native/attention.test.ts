import { test } from 'node:test';
import { createRuntime } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { expectClose, f32, i32, poisoned, Random, typed, U32 } from './support.js';

const rt = createRuntime(2);

interface Case {
  readonly lengths: readonly number[];
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly valueDim: number;
  readonly window: number;
  readonly spread: number;
  readonly softCap?: number;
}

/** Attention of one sequence after another, two passes in f64; also a bound of the f32 error of every output. */
function reference(c: Case, q: Float32Array, k: Float32Array, v: Float32Array, scale: number) {
  const y = new Float64Array(q.length * (c.valueDim / c.headDim));
  const bound = new Float64Array(y.length);
  let first = 0;
  for (const length of c.lengths) {
    for (let t = 0; t < length; t++)
      for (let h = 0; h < c.heads; h++) {
        const kv = Math.floor(h / (c.heads / c.kvHeads));
        const low = c.window > 0 ? Math.max(0, t - c.window + 1) : 0;
        const scores: number[] = [];
        let error = 0; // of a score: headDim fma and the rounding of q * scale
        for (let s = low; s <= t; s++) {
          let [dot, size] = [0, 0];
          for (let i = 0; i < c.headDim; i++) {
            const product =
              q[((first + t) * c.heads + h) * c.headDim + i]! *
              scale *
              k[((first + s) * c.kvHeads + kv) * c.headDim + i]!;
            dot += product;
            size += Math.abs(product);
          }
          const score = c.softCap ? c.softCap * Math.tanh(dot / c.softCap) : dot;
          scores.push(score);
          // A soft cap turns no error into a larger one, and adds its own (nn.test.ts).
          error = Math.max(error, (c.headDim + 1) * size + (c.softCap ? 18 * Math.abs(score) : 0));
        }
        const most = scores.reduce((a, b) => Math.max(a, b));
        const shares = scores.map((s) => Math.exp(s - most));
        const total = shares.reduce((a, b) => a + b, 0);
        const spread = Math.max(...scores.map((s) => most - s));
        for (let i = 0; i < c.valueDim; i++) {
          let [sum, size] = [0, 0];
          shares.forEach((share, s) => {
            const part = (share / total) * v[((first + low + s) * c.kvHeads + kv) * c.valueDim + i]!;
            sum += part;
            size += Math.abs(part);
          });
          const at = ((first + t) * c.heads + h) * c.valueDim + i;
          y[at] = sum;
          // An error e of a score changes its share by the factor 1 + e; twice, for the total. The subtraction of the
          // peak adds `spread` units, exp 3, rescaling and block sums 5 a block of 128 keys, a block's chain at most 128.
          const blocks = Math.ceil((t + 1) / 128);
          bound[at] = 1.1 * U32 * size * (2 * error + 2 * spread + 2 * (3 + 5 * blocks) + 128 + 16);
        }
      }
    first += length;
  }
  return { y, bound };
}

const plain: Case = { lengths: [1], heads: 1, kvHeads: 1, headDim: 1, valueDim: 1, window: 0, spread: 1 };
const CASES: readonly Case[] = [
  plain,
  { ...plain, lengths: [5, 1, 90], heads: 4, kvHeads: 2, headDim: 16, valueDim: 16 },
  { ...plain, lengths: [300, 0, 129], heads: 2, kvHeads: 1, headDim: 33, valueDim: 33, spread: 3 },
  { ...plain, lengths: [260], heads: 2, kvHeads: 2, headDim: 24, valueDim: 48 },
  { ...plain, lengths: [400, 85], heads: 2, kvHeads: 1, headDim: 16, valueDim: 16, window: 1 },
  { ...plain, lengths: [400, 85], heads: 2, kvHeads: 1, headDim: 16, valueDim: 16, window: 37, spread: 2 },
  { ...plain, lengths: [400], heads: 1, kvHeads: 1, headDim: 64, valueDim: 64, window: 200 },
  { ...plain, lengths: [150, 40], heads: 4, kvHeads: 2, headDim: 16, valueDim: 16, window: 60, spread: 4, softCap: 5 },
  { ...plain, lengths: [140], heads: 1, kvHeads: 1, headDim: 32, valueDim: 32, spread: 1, softCap: 50 },
  { ...plain, lengths: [512], heads: 1, kvHeads: 1, headDim: 8, valueDim: 8, window: 4096, spread: 6 },
];

for (const c of CASES)
  test(`attention ${JSON.stringify(c)}`, async () => {
    const random = new Random(c.headDim * 100 + c.window);
    const tokens = c.lengths.reduce((a, b) => a + b, 0);
    const q = random.normals(tokens * c.heads * c.headDim, c.spread);
    const k = random.normals(tokens * c.kvHeads * c.headDim, c.spread);
    const v = random.normals(tokens * c.kvHeads * c.valueDim);
    const scale = Math.fround(1 / Math.sqrt(c.headDim));
    const starts = [0];
    for (const length of c.lengths) starts.push(starts.at(-1)! + length);
    const y = poisoned('f32', [tokens, c.heads * c.valueDim]);
    const { heads, kvHeads, headDim, valueDim, window } = c;
    ops.attention(
      rt,
      f32([tokens, heads * headDim], q),
      f32([tokens, kvHeads * headDim], k),
      f32([tokens, kvHeads * valueDim], v),
      i32(starts),
      y,
      { heads, kvHeads, headDim, valueDim, scale, window, ...(c.softCap && { softCap: c.softCap }) },
    );
    await rt.sync();
    const want = reference(c, q, k, v, scale);
    expectClose('attention', typed(y), want.y, (i) => want.bound[i]! + 1e-30);
  });
