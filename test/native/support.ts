import { allocate, type DType, fromTyped, type Tensor, typed } from '../../native/binding.js';

/** Half of the distance between 1 and the next f32: the relative error of one rounding. */
export const U32 = 2 ** -24;
export const U64 = 2 ** -53;

/** A seeded generator (mulberry32) with the draws the tests need. */
export class Random {
  #state: number;
  constructor(seed: number) {
    this.#state = seed >>> 0;
  }
  /** Uniform in [0, 1). */
  uniform(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let t = this.#state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  }
  /** An integer in [low, high]. */
  integer(low: number, high: number): number {
    return low + Math.floor(this.uniform() * (high - low + 1));
  }
  normal(): number {
    return Math.sqrt(-2 * Math.log(1 - this.uniform())) * Math.cos(2 * Math.PI * this.uniform());
  }
  normals(count: number, scale = 1): Float32Array<ArrayBuffer> {
    return Float32Array.from({ length: count }, () => this.normal() * scale);
  }
}

export function f32(shape: readonly number[], data: Float32Array): Tensor {
  return fromTyped('f32', shape, data);
}

export function i32(data: readonly number[], shape: readonly number[] = [data.length]): Tensor {
  return fromTyped('i32', shape, Int32Array.from(data));
}

/** A tensor whose every byte is 0xff: NaN in all float types, so that an output left unwritten is seen. */
export function poisoned(dtype: DType, shape: readonly number[]): Tensor {
  const tensor = allocate(dtype, shape);
  if (tensor.byteLength > 0) tensor.bytes().fill(0xff);
  return tensor;
}

/** The number that an f16 bit pattern stands for, from the definition of binary16. */
export function decodeF16(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction ? Number.NaN : sign * Number.POSITIVE_INFINITY;
  return exponent === 0 ? sign * fraction * 2 ** -24 : sign * (1024 + fraction) * 2 ** (exponent - 25);
}

export function decodeBf16(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 7) & 255;
  const fraction = bits & 127;
  if (exponent === 255) return fraction ? Number.NaN : sign * Number.POSITIVE_INFINITY;
  return exponent === 0 ? sign * fraction * 2 ** -133 : sign * (128 + fraction) * 2 ** (exponent - 134);
}

/** Throws at the first |got - want| above `bound` (NaN counts as above); names the place. */
export function expectClose(
  what: string,
  got: ArrayLike<number>,
  want: ArrayLike<number>,
  bound: (index: number) => number,
): void {
  if (got.length !== want.length) throw new Error(`${what}: ${got.length} elements, not ${want.length}`);
  for (let i = 0; i < want.length; i++) {
    const most = bound(i);
    if (!(Math.abs(got[i]! - want[i]!) <= most))
      throw new Error(`${what}: element ${i} is ${got[i]}, not ${want[i]} +- ${most}`);
  }
}

export { typed };
