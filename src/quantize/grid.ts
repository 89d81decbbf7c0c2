import type { Zeros } from '../../formats/canonical/schema.js';
import { groupCount } from '../core/granularity.js';
import type { QuantScheme } from './scheme.js';
export function constantZero(s: QuantScheme): number {
  if (!s.symmetric || s.type.kind === 'float' || s.type.signed) return 0;
  return s.type.bits === 1 ? 0.5 : 2 ** (s.type.bits - 1);
}
export function zerosDeclaration(s: QuantScheme): Zeros {
  if (!s.symmetric) return { kind: 'int', dtype: s.type.signed ? 'i16' : 'u8' };
  const value = constantZero(s);
  return value === 0 ? { kind: 'none' } : { kind: 'const', value };
}
export function bitsPerWeight(s: QuantScheme, n: number, k: number): number {
  const g = groupCount(s.granularity, k);
  const scale = s.scaleDtype === 'f32' ? 32 : s.scaleDtype.startsWith('f8') ? 8 : 16;
  return (8 * n * Math.ceil((k * s.type.bits) / 8) + n * g * (scale + (s.symmetric ? 0 : 8)) + (s.globalScale ? 32 : 0)) / (n * k);
}
