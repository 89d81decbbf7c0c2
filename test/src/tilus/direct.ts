import { ELEMENT_TYPES, type ElementType } from '../../../src/tilus/types.js';

/** Oracles of the tests: written from definitions, sharing nothing with src/tilus but the names of types. */

export const typeNamed = (name: string): ElementType => ELEMENT_TYPES.get(name)!;

/** The number of a code: two's complement, or sign, exponent and fraction with subnormals. Infinities of f16, bf16, f32 and f8e5m2; NaN. */
export function numberOf(name: string, code: number): number {
  const integer = /^([ui])(\d+)$/.exec(name);
  if (integer) {
    const bits = Number(integer[2]);
    return integer[1] === 'i' && code >= 2 ** (bits - 1) ? code - 2 ** bits : code;
  }
  const [bits, e, m] =
    { f16: [16, 5, 10], bf16: [16, 8, 7], f32: [32, 8, 23] }[name] ??
    /^f(\d)e(\d)m(\d)$/.exec(name)!.slice(1).map(Number);
  const fraction = code % 2 ** m!;
  const power = Math.floor(code / 2 ** m!) % 2 ** e!;
  const bias = e === 1 ? 0 : 2 ** (e! - 1) - 1;
  const top = power === 2 ** e! - 1;
  if (top && (bits! > 8 || name === 'f8e5m2'))
    return fraction === 0 ? (code >= 2 ** (bits! - 1) ? -1 : 1) / 0 : Number.NaN;
  if (name === 'f8e4m3' && top && fraction === 7) return Number.NaN;
  const size = (fraction + (power === 0 ? 0 : 2 ** m!)) * 2 ** (Math.max(power, 1) - bias - m!);
  return code >= 2 ** (bits! - 1) ? -size : size;
}

/** The code of a type whose number is nearest, found by trying all; ties to the even code. Of finite numbers in range. */
const sorted = new Map<string, readonly { code: number; value: number }[]>();
export function nearest(name: string, value: number): number {
  let all = sorted.get(name);
  if (!all) {
    const { bits } = typeNamed(name);
    all = Array.from({ length: 2 ** bits }, (_, code) => ({ code, value: numberOf(name, code) }))
      .filter((each) => Number.isFinite(each.value) && !Object.is(each.value, -0))
      .sort((a, b) => a.value - b.value);
    sorted.set(name, all);
  }
  let [low, high] = [0, all.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (all[middle]!.value <= value) low = middle;
    else high = middle;
  }
  const [a, b] = [all[low]!, all[high]!];
  const [toA, toB] = [Math.abs(value - a.value), Math.abs(b.value - value)];
  return toA < toB || (toA === toB && a.code % 2 === 0) ? a.code : b.code;
}

/** Codes one after another from the lowest bit of the first byte. */
export function packed(bits: number, codes: ArrayLike<number>): Uint8Array {
  const out = new Uint8Array(Math.ceil((codes.length * bits) / 8));
  for (let i = 0; i < codes.length; i++)
    for (let bit = 0; bit < bits; bit++)
      if (Math.floor(codes[i]! / 2 ** bit) % 2 === 1) out[(i * bits + bit) >> 3]! |= 1 << ((i * bits + bit) & 7);
  return out;
}
export function unpacked(bits: number, bytes: Uint8Array, count: number): number[] {
  return Array.from({ length: count }, (_, i) => {
    let code = 0;
    for (let bit = bits - 1; bit >= 0; bit--)
      code = code * 2 + ((bytes[(i * bits + bit) >> 3]! >> ((i * bits + bit) & 7)) & 1);
    return code;
  });
}

/** Numbers as elements of a type; they are exact in it. */
export function elements(name: string, values: readonly number[]): Uint8Array {
  if (name === 'f32') return new Uint8Array(Float32Array.from(values).buffer);
  const { bits } = typeNamed(name);
  return packed(
    bits,
    values.map((value) => (bits === 32 ? value >>> 0 : nearest(name, value))),
  );
}
export function valuesOf(name: string, bytes: Uint8Array): number[] {
  if (name === 'f32') return [...new Float32Array(bytes.slice().buffer)];
  const { bits } = typeNamed(name);
  return unpacked(bits, bytes, Math.floor((bytes.length * 8) / bits)).map((code) => numberOf(name, code));
}

/** Whole numbers that look random, the same for a seed. */
export function noise(seed: number): (below: number) => number {
  let state = seed >>> 0 || 1;
  return (below) => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) % below;
  };
}
