import type { DType } from '../../native/binding.js';

/** The bits of a number that the type holds exactly and that is normal or 0. */
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

/** The number of f16 bits. */
export const halfValue = (bits: number): number => numberOf('f16', bits);

/** The nearest whole number, ties to even. */
export function nearestEven(x: number): number {
  const floor = Math.floor(x);
  const rest = x - floor;
  return rest > 0.5 || (rest === 0.5 && floor % 2 !== 0) ? floor + 1 : floor;
}

/** The nearest f16 of a number from 0 on, ties to even; below 2^-14 multiples of 2^-24. */
export function nearestHalf(x: number): number {
  if (x === 0) return 0;
  const unit = 2 ** (Math.max(Math.floor(Math.log2(x)), -14) - 10);
  return nearestEven(x / unit) * unit;
}
