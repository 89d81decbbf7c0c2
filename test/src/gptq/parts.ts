import assert from 'node:assert/strict';
import { fromTyped, type NativeRuntime, type Tensor } from '../../../native/binding.js';
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
  const tokens = Math.min(2 * k, 2048);
  // Neighbouring channels have something in common; the drift is of a tenth of their size.
  const plain = drawn(tokens * k, 1);
  const dtype = rt.momentDtype as 'f32' | 'f64';
  const uploaded = (values: Float64Array): Tensor =>
    rt.upload(fromTyped(dtype, [tokens, k], dtype === 'f32' ? Float32Array.from(values) : values));
  const x = uploaded(plain.map((v, i) => v + plain[i % k === k - 1 ? i + 1 - k : i + 1]!));
  const noise = uploaded(drawn(tokens * k, 2).map((v) => 0.1 * v));
  const moments = (left: Tensor): Tensor => {
    const sum = rt.allocate(dtype, [k, k]);
    rt.enqueue('gemm', [left, x], [sum], { transA: true });
    return sum;
  };
  const scheme = schemeFromOptions({ bits: 4, groupSize: 32 });
  const weights = Float32Array.from(drawn(n * k, 3));
  const solve = async (first: number, end: number) => {
    enqueued.length = 0;
    const feed = gptqQuantizer(GPTQ_DEFAULTS).feed(rt, { h: moments(x), drift: moments(noise), tokens }, n);
    const weight = rt.upload(fromTyped('f32', [end - first, k], weights.slice(first * k, end * k)));
    const { codes, scales } = await feed.solve('m', weight, scheme);
    const [bytes, factors] = await Promise.all([codes, scales].map((tensor) => rt.download(tensor)));
    feed.dispose();
    const corrections = enqueued.filter((op) => op === 'gptq_correction').length;
    return { codes: Buffer.from(bytes!.bytes()), scales: Buffer.from(factors!.bytes()), corrections };
  };
  const whole = await solve(0, n);
  const parts = [await solve(0, cut), await solve(cut, n)];
  for (const part of ['codes', 'scales'] as const)
    assert.ok(Buffer.concat(parts.map((each) => each[part])).equals(whole[part]), part);
  for (const { corrections } of parts) assert.equal(corrections, whole.corrections);
}
