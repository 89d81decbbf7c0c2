import { fieldOf } from '../foreign/bits.js';
import { detectZeroConvention, words, type ZeroConvention } from './layout.js';

/** The zero points of a group row by row as they are stored, [G, N], one a byte. */
export function storedZeros(qzeros: Int32Array, groups: number, n: number, bits: number): Uint8Array<ArrayBuffer> {
  const rowWords = words(n, bits);
  const out = new Uint8Array(groups * n);
  for (let g = 0; g < groups; g++)
    for (let column = 0; column < n; column++) out[g * n + column] = fieldOf(qzeros, g * rowWords, 1, column, bits);
  return out;
}

/** The convention under which every zero point would be 2^(bits-1); undefined where none is. */
export function symmetricUnder(
  qzeros: Int32Array,
  groups: number,
  n: number,
  bits: number,
): ZeroConvention | undefined {
  const quick = detectZeroConvention(qzeros, bits);
  if (quick || (n * bits) % 32 === 0) return quick;
  // The last word of a row is not full: look at the fields themselves.
  const stored = storedZeros(qzeros, groups, n, bits);
  const middle = 2 ** (bits - 1);
  if (stored.every((zero) => zero === middle)) return 'v2';
  return stored.every((zero) => zero === middle - 1) ? 'v1' : undefined;
}

/** Groups of a sample: how far the mean of their codes lies above the stored zero point. */
export interface ZeroSample {
  readonly count: number;
  readonly sum: number;
  readonly squares: number;
}

/** Columns of a module that a sample looks at. */
const SAMPLE_COLUMNS = 64;

/** mean(q) - stored zero over the groups of some columns. Codes and zeros as the file stores them; `group` I32 [K]. */
export function sampleZeros(
  qweight: Int32Array,
  qzeros: Int32Array,
  group: (k: number) => number,
  p: { bits: number; n: number; k: number; groups: number },
): ZeroSample {
  const { bits, n, k, groups } = p;
  const zeroWords = words(n, bits);
  const step = Math.max(1, Math.floor(n / SAMPLE_COLUMNS));
  let [count, sum, squares] = [0, 0, 0];
  for (let column = 0; column < n; column += step) {
    const total = new Float64Array(groups);
    const members = new Float64Array(groups);
    for (let i = 0; i < k; i++) {
      const g = group(i);
      total[g] = (total[g] as number) + fieldOf(qweight, column, n, i, bits);
      members[g] = (members[g] as number) + 1;
    }
    for (let g = 0; g < groups; g++) {
      if (members[g] === 0) continue;
      const offset = (total[g] as number) / (members[g] as number) - fieldOf(qzeros, g * zeroWords, 1, column, bits);
      count++;
      sum += offset;
      squares += offset * offset;
    }
  }
  return { count, sum, squares };
}

export function addSamples(samples: readonly ZeroSample[]): ZeroSample {
  return samples.reduce((a, b) => ({ count: a.count + b.count, sum: a.sum + b.sum, squares: a.squares + b.squares }), {
    count: 0,
    sum: 0,
    squares: 0,
  });
}

/**
 * The convention that asymmetric zero points follow, by their weights: weights of a linear average to about 0, so the
 * mean code lies at the true zero point, at the stored one in v2 and one above it in v1. Undefined where the sample does
 * not tell the two apart beyond doubt: the standard error must be below 0.08 of a step and the mean within 0.25 of one.
 */
export function conventionByMeans({ count, sum, squares }: ZeroSample): ZeroConvention | undefined {
  if (count < 64) return undefined;
  const mean = sum / count;
  const error = Math.sqrt(Math.max(0, squares / count - mean * mean) / count);
  if (error > 0.08) return undefined;
  if (Math.abs(mean) < 0.25) return 'v2';
  return Math.abs(mean - 1) < 0.25 ? 'v1' : undefined;
}

/**
 * Words of v1 zero points where a zero of 0, stored as -1, ran into its neighbours: from some field that is not the last
 * to the top all bits are ones. Of whole words only.
 */
export function borrowedWords(qzeros: Int32Array, bits: number): number {
  if (32 % bits !== 0) return 0;
  const two = -1 << (32 - 2 * bits); // the top two fields
  let found = 0;
  for (const word of qzeros) if ((word & two) === two) found++;
  return found;
}
