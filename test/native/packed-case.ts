import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { allocate, fromTyped } from '../../native/binding.js';
import { decodeCode, type QuantType } from '../../src/core/quant-type.js';
import { pack } from '../../src/layout/engine.js';
import { tilusScales, tilusWeight } from '../../src/pack/layouts/tilus.js';
import type { Random } from './support.js';

/** A multiple of 1/64 below 2 in f16: 0 or 2^-6 .. 2, where steps of 1/1024 are exact. */
export function half(value: number): number {
  if (value === 0) return 0;
  const exponent = Math.floor(Math.log2(Math.abs(value)));
  const mantissa = Math.round((Math.abs(value) / 2 ** exponent - 1) * 1024);
  return (value < 0 ? 0x8000 : 0) | ((exponent + 15) << 10) | mantissa;
}

export function fromHalf(bits: number): number {
  const exponent = (bits >> 10) & 31;
  const mantissa = bits & 1023;
  const size = exponent === 0 ? mantissa * 2 ** -24 : (1024 + mantissa) * 2 ** (exponent - 25);
  return bits & 0x8000 ? -size : size;
}

/** Multiples of 1/64 up to 1 in size. */
export function sixtyFourths(random: Random, count: number): Float64Array {
  return Float64Array.from({ length: count }, () => random.integer(-64, 64) / 64);
}

export interface PackedCase {
  readonly weights: Tensor;
  readonly scales: Tensor;
  readonly zeros: Tensor;
  /** The zero point where `zeros` are not given. */
  readonly zero: number;
  /** The weight of output j and input c. */
  value(j: number, c: number): number;
}

const up = (value: number, unit: number) => Math.ceil(value / unit) * unit;

/** A weight [n, k] of random codes, as the layout engine packs it. */
export function packedCase(
  rt: NativeRuntime,
  random: Random,
  type: QuantType,
  [n, k]: readonly [number, number],
  group: number,
  withZeros: boolean,
): PackedCase {
  const [np, kp] = [up(n, 32), up(k, 128)];
  const groups = group === 0 ? 1 : Math.ceil(k / group);
  const numbers = Array.from({ length: 2 ** type.bits }, (_, code) => decodeCode(type, code));
  const finite = numbers.flatMap((value, code) => (Number.isFinite(value) ? [code] : []));
  const codes = new Uint8Array(np * kp);
  for (let i = 0; i < n; i++)
    for (let j = 0; j < k; j++) codes[i * kp + j] = finite[random.integer(0, finite.length - 1)]!;
  const scaleBits = new Uint16Array(np * groups);
  const zeroBytes = new Uint8Array(np * groups);
  for (let i = 0; i < n * groups; i++) {
    scaleBits[i] = half((random.integer(0, 1) ? 1 : -1) * (random.integer(8, 120) / 64));
    zeroBytes[i] = random.integer(0, 2 ** type.bits - 1);
  }
  const weights = allocate('u8', [np / 32, kp / 128, 512 * type.bits]);
  const scales = allocate('f16', [np / 32, groups, 32]);
  const zeros = allocate('u8', [np / 32, groups, 32]);
  pack(rt, tilusWeight(np, kp, type.bits), fromTyped('u8', [np, kp], codes), weights);
  pack(rt, tilusScales(np, groups, 16), fromTyped('f16', [np, groups], scaleBits), scales);
  pack(rt, tilusScales(np, groups, 8), fromTyped('u8', [np, groups], zeroBytes), zeros);
  const zero = withZeros || type.kind === 'float' ? 0 : type.signed ? 0 : 2 ** (type.bits - 1);
  const value = (j: number, c: number): number => {
    const at = j * groups + (group === 0 ? 0 : Math.floor(c / group));
    return (numbers[codes[j * kp + c]!]! - (withZeros ? zeroBytes[at]! : zero)) * fromHalf(scaleBits[at]!);
  };
  return { weights, scales, zeros, zero, value };
}

/** One row of a product in double precision, and whether a result in f16 is near enough. */
export function nearProduct(
  got: number,
  k: number,
  bias: number,
  term: (c: number) => number,
): { readonly near: boolean; readonly want: number } {
  let want = bias;
  let size = Math.abs(bias);
  for (let c = 0; c < k; c++) {
    const product = term(c);
    want += product;
    size += Math.abs(product);
  }
  // Weights are rounded to f32 once, sums of k + 1 terms in f32, the result to f16; beyond 65504 it is infinite.
  const bound = size * (k + 3) * 2 ** -24 + Math.abs(want) * 2 ** -11 + 2 ** -25;
  const near = (got & 0x7fff) === 0x7c00 ? Math.abs(want) + bound >= 65520 : Math.abs(fromHalf(got) - want) <= bound;
  return { near, want };
}
