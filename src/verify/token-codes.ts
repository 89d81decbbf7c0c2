import type { DType } from '../../native/binding.js';
import type { MixedWeight } from '../model/source.js';
import { nearestEven } from './floats.js';

/**
 * What a kernel with codes for activations multiplies instead of x [M,K]: code times scale, one scale per token (native/packed-ops.ts,
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
      read[start + i] = scale * (dtype === 'i8' ? nearestEven(ratio) : toE4M3(ratio));
    }
  }
  return read;
}

/** |value| <= 448: four significant bits, of numbers below 2^-6 multiples of 2^-9. */
function toE4M3(value: number): number {
  if (value === 0) return 0;
  const step = 2 ** Math.max(Math.floor(Math.log2(Math.abs(value))) - 3, -9);
  return nearestEven(value / step) * step;
}

/** What a W4Ax linear reads of x [M,K], whose values f32 holds: codes [M,K] and scales [M,K/128]. */
export interface BlockCodes {
  readonly codes: Int8Array;
  readonly scales: Float32Array;
}

/**
 * Codes of 4 and 8 bits by blocks of 128 columns (native/w4ax-ops.ts, quantizeActivations), by arithmetic of the verifier's own: every
 * operation is rounded to fp32.
 */
export function asBlockCodes(x: Float64Array, k: number, { order, blocks }: MixedWeight['form']): BlockCodes {
  const { bits, clip } = blocks;
  const codes = new Int8Array(x.length);
  const scales = new Float32Array(x.length / 128);
  for (let at = 0; at < scales.length; at++) {
    const [token, b] = [Math.floor(at / bits.length), at % bits.length];
    const value = (i: number): number => x[token * k + (order ? order[128 * b + i]! : 128 * b + i)]!;
    const top = bits[b] === 4 ? 7 : 127;
    let most = 0;
    for (let i = 0; i < 128; i++) most = Math.max(most, Math.abs(value(i)));
    const scale = Math.fround(most * Math.fround(clip[b]! / top));
    if (scale < 2 ** -126) continue;
    scales[at] = scale;
    const inverse = Math.fround(1 / scale);
    for (let i = 0; i < 128; i++)
      codes[128 * at + i] = nearestEven(Math.min(Math.max(Math.fround(value(i) * inverse), -top), top));
  }
  return { codes, scales };
}
