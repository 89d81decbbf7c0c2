import assert from 'node:assert/strict';
import { fromTyped, type NativeRuntime, type Tensor, typed } from '../../../native/binding.js';
import { GPTQ_DEFAULTS } from '../../../src/gptq/options.js';
import { gptqQuantizer } from '../../../src/gptq/quantizer.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';

/** Small numbers of a generator. */
function drawn(count: number, seed: number): Float64Array {
  let state = seed;
  return Float64Array.from({ length: count }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return (state >>> 8) / 2 ** 24 - 0.5;
  });
}

/**
 * Solves W [n,k] with a Hessian and a drift, whole and as rows [0, cut) and [cut, n) by solvers that know how many rows the feed has.
 * Returns codes and scales, of the whole and of the parts one after the other.
 */
export async function wholeAndParts(rt: NativeRuntime, n: number, k: number, cut: number) {
  const tokens = 2 * k;
  const [x, noise] = [drawn(tokens * k, 1), drawn(tokens * k, 2)];
  const [h, d] = [new Float64Array(k * k), new Float64Array(k * k)];
  for (let t = 0; t < tokens; t++)
    for (let i = 0; i < k; i++) {
      // Neighbouring channels have something in common.
      const a = x[t * k + i]! + x[t * k + ((i + 1) % k)]!;
      const off = 0.1 * noise[t * k + i]!;
      for (let j = 0; j < k; j++) {
        const b = x[t * k + j]! + x[t * k + ((j + 1) % k)]!;
        h[i * k + j]! += a * b;
        d[i * k + j]! += off * b;
      }
    }
  const moments = (values: Float64Array): Tensor => {
    const dtype = rt.momentDtype as 'f32' | 'f64';
    return rt.upload(fromTyped(dtype, [k, k], dtype === 'f32' ? Float32Array.from(values) : values));
  };
  const scheme = schemeFromOptions({ bits: 4, groupSize: 32 });
  const weights = Float32Array.from(drawn(n * k, 3));
  const solve = async (first: number, end: number): Promise<[Uint8Array, Uint16Array]> => {
    const feed = gptqQuantizer(GPTQ_DEFAULTS).feed(rt, { h: moments(h), drift: moments(d), tokens }, n);
    const weight = rt.upload(fromTyped('f32', [end - first, k], weights.slice(first * k, end * k)));
    const { codes, scales } = await feed.solve('m', weight, scheme);
    const found = await Promise.all([codes, scales].map((tensor) => rt.download(tensor)));
    feed.dispose();
    return [found[0]!.bytes().slice(), typed<Uint16Array>(found[1]!).slice()];
  };
  const whole = await solve(0, n);
  const parts = [await solve(0, cut), await solve(cut, n)];
  return { whole, parts: [0, 1].map((which) => parts.flatMap((part) => [...part[which]!])) };
}

/** Parts of a matrix that several devices solve have the bytes of the whole. */
export async function partsAlike(rt: NativeRuntime, n: number, k: number, cut: number): Promise<void> {
  const { whole, parts } = await wholeAndParts(rt, n, k, cut);
  assert.deepEqual(parts[0], [...whole[0]]);
  assert.deepEqual(parts[1], [...whole[1]]);
}
