import { type DType, type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
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

export function bitsOf(dtype: 'f16' | 'bf16'): (value: number) => number {
  const mantissa = dtype === 'f16' ? 10 : 7;
  const bias = dtype === 'f16' ? 15 : 127;
  return (value) => {
    if (value === 0) return 0;
    const exponent = Math.floor(Math.log2(Math.abs(value)));
    const fraction = (Math.abs(value) / 2 ** exponent - 1) * 2 ** mantissa;
    return (value < 0 ? 0x8000 : 0) | ((exponent + bias) << mantissa) | fraction;
  };
}

/** The number of a bit pattern; infinity and NaN as such. */
export function numberOf(dtype: DType, bits: number): number {
  const [mantissa, width, bias] = dtype === 'f16' ? [10, 5, 15] : [7, 8, 127];
  const exponent = (bits >> mantissa) & (2 ** width - 1);
  const fraction = bits & (2 ** mantissa - 1);
  const sign = bits & 0x8000 ? -1 : 1;
  if (exponent === 2 ** width - 1) return fraction ? Number.NaN : sign * Number.POSITIVE_INFINITY;
  if (exponent === 0) return sign * fraction * 2 ** (1 - bias - mantissa);
  return sign * (2 ** mantissa + fraction) * 2 ** (exponent - bias - mantissa);
}

export function chooseColumns(n: number, seed: number): number[] {
  if (n <= COLUMNS) return Array.from({ length: n }, (_, i) => i);
  const columns = new Set([0, n - 1]);
  for (let state = seed >>> 0; columns.size < COLUMNS; ) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    columns.add(Math.floor((state / 2 ** 32) * n));
  }
  return [...columns].sort((a, b) => a - b);
}
