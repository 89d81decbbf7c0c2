import { type Granularity, groupSizeOf } from '../core/granularity.js';
import type { ColumnOrder } from './options.js';

/**
 * The order in which columns are solved. Large diag(H) first leaves the most columns over to make up for the errors that
 * matter most (act-order); ties keep their order. `group` (GAR) moves whole groups, by their largest entry. Runs of `unit`
 * columns stay together and in order: 4 for 2:4 sparsity, whose choices are made among stored neighbours.
 */
export function solvingOrder(
  kind: ColumnOrder,
  diagonal: ArrayLike<number>,
  granularity: Granularity,
  unit = 1,
): Int32Array {
  const k = diagonal.length;
  if (unit > 1) return byUnits(kind, diagonal, granularity, unit);
  const order = Int32Array.from({ length: k }, (_, i) => i);
  const byDiagonal = (a: number, b: number) => (diagonal[b] as number) - (diagonal[a] as number) || a - b;
  if (kind === 'static') order.sort(byDiagonal);
  if (kind === 'group') {
    const size = groupSizeOf(granularity, k);
    const groups = Array.from({ length: k / size }, (_, g) => order.slice(g * size, (g + 1) * size).sort(byDiagonal));
    groups.sort((a, b) => byDiagonal(a[0] as number, b[0] as number));
    let at = 0;
    for (const group of groups) {
      order.set(group, at);
      at += size;
    }
  }
  return order;
}

/** Orders units by their largest entry, as columns are ordered by their own; where no unit spans two groups, else none. */
function byUnits(kind: ColumnOrder, diagonal: ArrayLike<number>, granularity: Granularity, unit: number): Int32Array {
  const k = diagonal.length;
  const size = groupSizeOf(granularity, k);
  const largest = Float64Array.from({ length: k / unit }, (_, u) =>
    Math.max(...Array.from({ length: unit }, (_, i) => diagonal[u * unit + i] as number)),
  );
  const aligned = kind !== 'group' || size % unit === 0;
  const groups: Granularity = kind === 'group' && aligned ? { kind: 'group', size: size / unit } : { kind: 'channel' };
  const units = solvingOrder(aligned ? kind : 'none', largest, groups);
  return Int32Array.from({ length: k }, (_, j) => (units[Math.floor(j / unit)] as number) * unit + (j % unit));
}

/** The scale group of the j-th solved column. */
export function solvingGroups(order: Int32Array, granularity: Granularity): Int32Array {
  const size = groupSizeOf(granularity, order.length);
  return order.map((k) => Math.floor(k / size));
}
