import { type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
import { settle } from './native.js';

/** Tokens: one, whole tiles of each size, and tails around them. */
export const TOKENS = [1, 2, 7, 8, 9, 16, 17, 31, 33, 64];
export const MOST_TOKENS = 64;
/** Output features of a module that are compared with fp64; the others must at least have been written. */
const COLUMNS = 64;
/** A NaN in f16 and bf16 that no arithmetic makes. */
export const POISON = 0xffd5;

export async function download(rt: NativeRuntime, y: Tensor): Promise<Uint16Array> {
  await settle(rt);
  const host = await rt.download(y);
  const values = typed<Uint16Array>(host).slice();
  host.dispose();
  return values;
}

/** Multiples of 1/64 in [-1, 1], which f16 and bf16 both hold, [MOST_TOKENS][k]. */
export function activations(k: number, seed: number): Float64Array {
  let state = (seed ^ 0x9e3779b9) >>> 0;
  return Float64Array.from({ length: MOST_TOKENS * k }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return ((state >>> 16) % 129) / 64 - 1;
  });
}

/** All of them, or 64: the first, the last and others that the seed draws. */
export function chooseColumns(n: number, seed: number): number[] {
  return n <= COLUMNS ? Array.from({ length: n }, (_, i) => i) : sampled(n, COLUMNS, [0, n - 1], seed);
}

/** `count` different numbers below `all`, ascending: `always`, and what a linear congruential step (Numerical Recipes) draws. */
export function sampled(all: number, count: number, always: readonly number[], seed: number): number[] {
  const chosen = new Set(always);
  for (let state = seed >>> 0; chosen.size < count; ) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    chosen.add(Math.floor((state / 2 ** 32) * all));
  }
  return [...chosen].sort((a, b) => a - b);
}
