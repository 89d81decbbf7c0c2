import type { ScaleDtype, Zeros } from '../../formats/canonical/schema.js';
import { groupCount } from '../core/granularity.js';
import type { QuantScheme } from './scheme.js';

const SCALE_BITS: Readonly<Record<ScaleDtype, number>> = { f16: 16, bf16: 16, f32: 32, f8_e8m0: 8, f8_e4m3: 8 };

/**
 * The zeros of a scheme. Symmetric: none for signed types, the constant 2^(b-1) for unsigned ones (u1: 0.5, so that its
 * two codes are -scale/2 and +scale/2). Asymmetric: one whole number a group, a code of the type.
 */
export function zerosOf(scheme: QuantScheme): Zeros {
  if (!scheme.symmetric) return { kind: 'int', dtype: scheme.type.signed ? 'i16' : 'u8' };
  if (scheme.type.signed) return { kind: 'none' };
  return { kind: 'const', value: constantZero(scheme) };
}

/** What is subtracted from every decoded code of a symmetric scheme. */
export function constantZero(scheme: QuantScheme): number {
  const { type } = scheme;
  if (!scheme.symmetric || type.signed) return 0;
  return type.bits === 1 ? 0.5 : 2 ** (type.bits - 1);
}

/** Bytes in a row of K codes, canonical form. */
export function streamBytes(bits: number, k: number): number {
  return Math.ceil((k * bits) / 8);
}

/**
 * Bits that a weight of an [n, k] module costs: its code and its share of scale, zero (counted at the type's width, as
 * packed formats store it) and second level; of a two-level grid a byte a group and 32 bits a row. 2:4: half a code, and two bits that say where each kept weight stands.
 */
export function bitsPerWeight(scheme: QuantScheme, n: number, k: number): number {
  if (scheme.twoLevel) return scheme.type.bits + (8 * groupCount(scheme.granularity, k) + 32) / k;
  const zero = scheme.symmetric ? 0 : scheme.type.bits;
  const perGroup = SCALE_BITS[scheme.scaleDtype] + zero;
  const code = scheme.sparsity ? scheme.type.bits / 2 + 1 : scheme.type.bits;
  return code + (perGroup * groupCount(scheme.granularity, k)) / k + (scheme.globalScale ? 32 / (n * k) : 0);
}
