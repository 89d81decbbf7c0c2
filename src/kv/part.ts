import { LpqError } from '../core/error.js';
import { bitPositions, extents, type MemoryLayout, memoryLayout, type PackMode } from '../layout/memory.js';

/** What lies in a page: a matrix of codes or 16-bit numbers, in one of the page's tensors. */
export interface KvPart {
  /** Which of the page's tensors. */
  readonly tensor: number;
  readonly layout: MemoryLayout;
}

/**
 * The part of a layout that holds rows first .. first + count, in the same block of bytes. `count` is made of whole inner modes of
 * the rows, and `first` a multiple of it. Throws LPQ_LAYOUT.
 */
export function rowsOf(layout: MemoryLayout, first: number, count: number): MemoryLayout {
  const [rows] = extents(layout);
  const fail = (): never => {
    throw new LpqError(
      'LPQ_LAYOUT',
      `rows ${first} to ${first + count - 1} are not a tile of a layout of ${rows} rows`,
    );
  };
  if (count < 1 || first % count !== 0 || first + count > rows) fail();
  const kept: PackMode[] = [];
  let need = count;
  for (const mode of layout.rows.toReversed()) {
    if (need === 1) break;
    if (need >= mode.size ? need % mode.size !== 0 : mode.size % need !== 0) fail();
    const size = Math.min(need, mode.size);
    kept.unshift({ ...mode, size });
    need /= size;
  }
  const base = bitPositions(layout, first, 0)[0] as number;
  return memoryLayout({ ...layout, rows: kept, base });
}
