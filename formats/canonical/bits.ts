import type { CanonicalModule } from './schema.js';

/**
 * Bits that a weight of a module costs: its code, its share of the scales (of two levels a byte a group and 32 bits a row) and, of 2:4,
 * where each kept weight stands.
 */
export function bitsOfModule({
  type,
  shape,
  scales,
  sparsity,
}: Pick<CanonicalModule, 'type' | 'shape' | 'scales'> & Partial<Pick<CanonicalModule, 'sparsity'>>): number {
  const width = Number(/^[iuf](\d)/.exec(type)?.[1] ?? 8);
  const scaleBits = scales.dtype === 'f32' ? 32 : scales.dtype.startsWith('f8') ? 8 : 16;
  const [n, k] = shape;
  if (scales.twoLevel) return width + (8 * Math.ceil(k / scales.block[1]) + 32) / k;
  const count = Math.ceil(n / scales.block[0]) * Math.ceil(k / scales.block[1]);
  return (sparsity === '2:4' ? width / 2 + 1 : width) + (scaleBits * count) / (n * k);
}
