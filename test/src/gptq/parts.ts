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
 * Solves W [n,k] with a Hessian and a drift, whole and as rows [0, cut) and [cut, n) by solvers that know how many rows the feed has:
 * parts have the bytes of the whole, and are corrected by the same operations.
 */
export async function partsAlike(given: NativeRuntime, n: number, k: number, cut: number): Promise<void> {
  const enqueued: string[] = [];
  const rt = new Proxy(given, {
    get(of, name) {
      const value: unknown = Reflect.get(of, name, of);
      if (typeof value !== 'function') return value;
      return (...args: unknown[]) => {
        if (name === 'enqueue') enqueued.push(args[0] as string);
        return value.apply(of, args);
      };
    },
  });
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
  const solve = async (first: number, end: number) => {
    enqueued.length = 0;
    const feed = gptqQuantizer(GPTQ_DEFAULTS).feed(rt, { h: moments(h), drift: moments(d), tokens }, n);
    const weight = rt.upload(fromTyped('f32', [end - first, k], weights.slice(first * k, end * k)));
    const { codes, scales } = await feed.solve('m', weight, scheme);
    const [bytes, factors] = await Promise.all([codes, scales].map((tensor) => rt.download(tensor)));
    feed.dispose();
    const corrections = enqueued.filter((op) => op === 'gptq_correction').length;
    return { codes: [...bytes!.bytes()], scales: [...typed<Uint16Array>(factors!)], corrections };
  };
  const whole = await solve(0, n);
  const parts = [await solve(0, cut), await solve(cut, n)];
  assert.deepEqual(
    parts.flatMap(({ codes }) => codes),
    whole.codes,
  );
  assert.deepEqual(
    parts.flatMap(({ scales }) => scales),
    whole.scales,
  );
  for (const { corrections } of parts) assert.equal(corrections, whole.corrections);
}
