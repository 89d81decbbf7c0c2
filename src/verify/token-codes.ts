import type { DType } from '../../native/binding.js';

/**
 * What a kernel with codes for activations multiplies instead of x [M,K]: code times scale, a scale a token (native/packed-ops.ts,
 * quantizeTokens), by arithmetic of the verifier's own.
 */
export function asCodes(x: Float64Array, k: number, dtype: DType): Float64Array {
  const top = dtype === 'i8' ? 127 : 448;
  const read = new Float64Array(x.length);
  for (let start = 0; start < x.length; start += k) {
    const token = x.subarray(start, start + k);
    const most = token.reduce((largest, value) => Math.max(largest, Math.abs(value)), 0);
    const scale = Math.fround(most * Math.fround(1 / top));
    if (scale === 0) continue;
    const inverse = Math.fround(1 / scale);
    for (const [i, value] of token.entries()) {
      const ratio = Math.min(Math.max(Math.fround(value * inverse), -top), top);
      read[start + i] = scale * (dtype === 'i8' ? toEven(ratio) : toE4M3(ratio));
    }
  }
  return read;
}

function toEven(value: number): number {
  const down = Math.floor(value);
  const rest = value - down;
  return rest > 0.5 || (rest === 0.5 && down % 2 !== 0) ? down + 1 : down;
}

/** |value| <= 448: four significant bits, of numbers below 2^-6 multiples of 2^-9. */
function toE4M3(value: number): number {
  if (value === 0) return 0;
  const step = 2 ** Math.max(Math.floor(Math.log2(Math.abs(value))) - 3, -9);
  return toEven(value / step) * step;
}
