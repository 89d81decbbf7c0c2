import { type Granularity, groupLength } from '../core/granularity.js';
import type { ColumnOrder } from './options.js';

/**
 * The order in which columns are solved. Large diag(H) first leaves the most columns over to make up for the errors that
 * matter most (act-order); ties keep their order. `group` (GAR) moves whole groups, by their largest entry.
 */
export function solvingOrder(kind: ColumnOrder, diagonal: ArrayLike<number>, granularity: Granularity): Int32Array {
  const k = diagonal.length;
  const order = Int32Array.from({ length: k }, (_, i) => i);
  const byDiagonal = (a: number, b: number) => (diagonal[b] as number) - (diagonal[a] as number) || a - b;
  if (kind === 'static') order.sort(byDiagonal);
  if (kind === 'group') {
    const size = groupLength(granularity, k);
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

/** The scale group of the j-th solved column. */
export function solvingGroups(order: Int32Array, granularity: Granularity): Int32Array {
  const size = groupLength(granularity, order.length);
  return order.map((k) => Math.floor(k / size));
}
