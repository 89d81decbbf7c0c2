import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime, type Tensor, typed } from '../../native/binding.js';
import { multiplied } from '../../native/multiplied.js';
import { ops } from '../../native/ops.js';
import { f32, i32, poisoned, Random } from './support.js';

const [single, half] = [createRuntime(1), createRuntime({ threads: 2, products: 'bf16' })];

/** Values that bf16 holds. */
function held(random: Random, count: number): Float32Array {
  const bits = new Uint32Array(Float32Array.from(random.normals(count)).buffer);
  return new Float32Array(bits.map((word) => word & 0xffff0000).buffer);
}

// Operands are held by bf16, and q by a scale of a power of two; so what is rounded are probabilities, and gradients of scores.
test('attention and its gradient with products in bf16: those of fp32, of rounded probabilities and score gradients', async () => {
  const random = new Random(9);
  for (const [lengths, heads, kvHeads, headDim, window] of [
    [[3, 130], 2, 1, 16, 0],
    [[257], 2, 2, 64, 100],
  ] as const) {
    const tokens = lengths.reduce((a: number, b) => a + b, 0);
    const scale = 2 ** -Math.ceil(Math.log2(headDim) / 2);
    const make = (of: number) => held(random, tokens * of * headDim);
    const [q, k, v, dy] = [make(heads), make(kvHeads), make(kvHeads), make(heads)];
    const starts = i32([0, ...lengths.map((_, i) => lengths.slice(0, i + 1).reduce((a: number, b) => a + b, 0))]);
    const p = { heads, kvHeads, headDim, scale, window };
    const shape = (of: number) => [tokens, of * headDim];
    const run = async (rt: typeof single): Promise<Record<'y' | 'dq' | 'dk' | 'dv', Float32Array>> => {
      const given = { q: f32(shape(heads), q), k: f32(shape(kvHeads), k), v: f32(shape(kvHeads), v) };
      const out = {
        dq: poisoned('f32', shape(heads)),
        dk: poisoned('f32', shape(kvHeads)),
        dv: poisoned('f32', shape(kvHeads)),
      };
      const y = poisoned('f32', shape(heads));
      ops.attention(rt, given.q, given.k, given.v, starts, y, multiplied(rt, p));
      ops.attentionBackward(rt, { ...given, starts, dy: f32(shape(heads), dy) }, out, p);
      await rt.sync();
      const read = (tensor: Tensor) => typed(tensor).slice() as Float32Array;
      return { y: read(y), dq: read(out.dq), dk: read(out.dk), dv: read(out.dv) };
    };
    const [want, made] = [await run(single), await run(half)];
    const bounds = { y: q.map(() => 0), dq: q.map(() => 0), dk: k.map(() => 0), dv: v.map(() => 0) };
    let first = 0;
    for (const length of lengths) {
      for (let t = first; t < first + length; t++)
        for (let h = 0; h < heads; h++) {
          const low = Math.max(first, window > 0 ? t - window + 1 : first);
          const row = (t * heads + h) * headDim;
          const key = (s: number) => (s * kvHeads + Math.floor(h / (heads / kvHeads))) * headDim;
          const dot = (a: Float32Array, i: number, b: Float32Array, j: number): number => {
            let sum = 0;
            for (let c = 0; c < headDim; c++) sum += a[i + c]! * b[j + c]!;
            return sum;
          };
          const seen = Array.from({ length: t + 1 - low }, (_, s) => low + s);
          const scores = seen.map((s) => Math.exp(scale * dot(q, row, k, key(s))));
          const total = scores.reduce((a, b) => a + b, 0);
          const slopes = seen.map((s) => dot(dy, row, v, key(s)));
          const mean = slopes.reduce((sum, slope, s) => sum + (scores[s]! / total) * slope, 0);
          for (const [i, s] of seen.entries()) {
            const share = scores[i]! / total;
            const slope = scale * Math.abs(share * (slopes[i]! - mean));
            for (let c = 0; c < headDim; c++) {
              bounds.y[row + c]! += share * Math.abs(v[key(s) + c]!);
              bounds.dv[key(s) + c]! += share * Math.abs(dy[row + c]!);
              bounds.dq[row + c]! += slope * Math.abs(k[key(s) + c]!);
              bounds.dk[key(s) + c]! += slope * Math.abs(q[row + c]!);
            }
          }
        }
      first += length;
    }
    for (const name of ['y', 'dq', 'dk', 'dv'] as const) {
      let [most, all] = [0, 0];
      made[name].forEach((value, i) => {
        const off = Math.abs(value - want[name][i]!);
        // Half an ulp of bf16; an exponential, its sum and chains of fma of fp32 beside.
        assert.ok(off <= 2 ** -8 * bounds[name][i]! + 1e-6, `${name} ${i}: off by ${off}`);
        most = Math.max(most, off);
        all += Math.abs(value);
      });
      assert.ok(all > 0 && most > 0, `${name}: products in bf16 are not those of fp32`);
    }
  }
});
