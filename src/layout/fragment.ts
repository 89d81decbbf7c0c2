import { LpqError } from '../core/error.js';
import { canonical } from './canonical.js';
import { type Layout, layout, localCount, threadCount } from './layout.js';
import { columnLocal, columnSpatial, local, spatial } from './make.js';
import type { MemoryLayout, PackMode } from './memory.js';
import { assemble, type Part, replacePart, takeApart } from './parts.js';
import { product } from './product.js';

/**
 * Register fragments of mma.m16n8k16 with 16-bit operands, as the PTX ISA draws them: A [m, k] 16x16, B [k, n] 16x8,
 * C and D [m, n] 16x8 (Tilus, Fig. 2).
 */
export const MMA_M16N8K16 = {
  a: product(columnLocal(2, 2), spatial(8, 4), local(1, 2)),
  b: product(local(2, 1), columnSpatial(4, 8), local(2, 1)),
  c: product(local(2, 1), spatial(8, 4), local(1, 2)),
} as const;

/** The same of mma.m16n8k32 with 8-bit and m16n8k64 with 4-bit operands; C and D are as above. */
export const MMA_M16N8K32 = {
  a: product(columnLocal(2, 2), spatial(8, 4), local(1, 4)),
  b: product(local(2, 1), columnSpatial(4, 8), local(4, 1)),
} as const;
export const MMA_M16N8K64 = {
  a: product(columnLocal(2, 2), spatial(8, 4), local(1, 8)),
  b: product(local(2, 1), columnSpatial(4, 8), local(8, 1)),
} as const;

/** Of wgmma.m64n8k16: A [m, k] in registers and C [m, n], 16 rows a warp. */
export const WGMMA_M64N8K16 = {
  a: product(spatial(4, 1), MMA_M16N8K16.a),
  c: product(spatial(4, 1), MMA_M16N8K16.c),
} as const;

/** What ldmatrix gives each lane of an 8x8 matrix of 16-bit elements, and with .trans. */
export const LDMATRIX = {
  plain: product(spatial(8, 4), local(1, 2)),
  trans: product(columnSpatial(4, 8), local(2, 1)),
} as const;

/**
 * The order of the eight codes v0 .. v7 of a 16x16 fragment in a 32-bit word that MARLIN and TurboMind store: low nibble
 * first 0 2 4 6 1 3 5 7 (75316420 from the top), so that one mask takes the two codes of a half2.
 */
export const WORD_75316420: Layout = layout([8], [2, 2, 2], [], [2, 0, 1]);

/** The same for the four bytes of a word of 8-bit codes: v0 v2 v1 v3 from the lowest. */
export const WORD_3120: Layout = layout([4], [2, 2], [], [1, 0]);

/**
 * The layout that stores the elements of each thread in another order: h(t, i) = f(t, order(i)), `order` a layout of one
 * dimension in one thread over the elements that f gives a thread (or over the last of them: the rest stay in place).
 * Throws LPQ_LAYOUT when the two do not split into common modes.
 */
export function reorderLocals(f: Layout, order: Layout): Layout {
  const mine = localCount(f);
  const its = localCount(order);
  if (order.shape.length !== 1 || threadCount(order) !== 1 || mine % its !== 0)
    throw new LpqError('LPQ_LAYOUT', 'an order of local elements has one dimension and one thread', {
      got: `shape [${order.shape}] over ${threadCount(order)} threads`,
      expected: `a divisor of ${mine} elements in one thread`,
    });
  const full = takeApart(canonical(product(local(mine / its), order)));
  const parts = takeApart(canonical(f));
  // Cut both lists (f's local modes, and the digits of the index that order reads) at the same products.
  for (let i = 0; i < parts.local.length || i < full.dims[0]!.length; i++) {
    const a = parts.local[i];
    const b = full.dims[0]![i];
    if (!a || !b) break;
    if (a.size === b.size) continue;
    const [large, small, home] = a.size > b.size ? ([a, b, parts] as const) : ([b, a, full] as const);
    if (large.size % small.size !== 0)
      throw new LpqError('LPQ_LAYOUT', `modes of ${a.size} and ${b.size} elements have no common factors in order`);
    replacePart(home, large, [{ size: small.size }, { size: large.size / small.size }]);
  }
  const digit = new Map<Part, Part>(full.dims[0]!.map((part, i) => [part, parts.local[i]!]));
  return assemble({ ...parts, local: full.local.map((part) => digit.get(part)!) });
}

/** The modes of a stored tile, and the bits that it fills. */
export interface StoredTile extends Pick<MemoryLayout, 'rows' | 'columns' | 'unit'> {
  readonly bits: number;
}

/**
 * A register tile as it is stored for a warp to read: thread after thread, each thread's elements one after another,
 * `bits` wide; so a thread's load is contiguous. Rows and columns are the tile's two dimensions. Throws LPQ_LAYOUT for
 * replicas, which memory does not have.
 */
export function storedTile(tile: Layout, bits: number): StoredTile {
  const perThread = bits * localCount(tile);
  return store(tile, bits, perThread, (stride) => ({ stride }));
}

/**
 * A register tile reinterpreted as bytes, local(n2).spatial(T).local(n1) (Tilus, section 7.2): each thread's n bytes of
 * consecutive codes are cut into loads of n1 = gcd(n, 16) bytes, and load o of all threads comes before load o + 1.
 * Works for every width, also where codes straddle bytes. Throws LPQ_LAYOUT unless a thread holds whole bytes.
 */
export function reinterpretedTile(tile: Layout, bits: number): StoredTile {
  const bytes = (bits * localCount(tile)) / 8;
  if (!Number.isInteger(bytes))
    throw new LpqError('LPQ_LAYOUT', 'a tile can be read as bytes only when every thread holds whole bytes', {
      got: `${bits * localCount(tile)} bits a thread`,
    });
  const load = 8 * gcd(bytes, 16);
  const unit = { bits: load, stride: threadCount(tile) * load };
  return {
    ...store(tile, bits, load, (stride) => ({ stride, stream: true })),
    unit,
    bits: threadCount(tile) * bytes * 8,
  };
}

/** Threads lie `threadStride` bits apart, a thread's elements `bits`. */
function store(
  tile: Layout,
  bits: number,
  threadStride: number,
  local: (stride: number) => Omit<PackMode, 'size'>,
): StoredTile {
  const parts = takeApart(tile);
  const [rows, columns, ...more] = parts.dims;
  if (tile.replication !== 1 || !rows || !columns || more.length > 0)
    throw new LpqError('LPQ_LAYOUT', 'only a two-dimensional tile without replicas can be stored', {
      got: `shape [${tile.shape}], replication ${tile.replication}`,
    });
  const placed = new Map<Part, Omit<PackMode, 'size'>>();
  let stride = bits;
  for (const part of parts.local.toReversed()) {
    placed.set(part, local(stride));
    stride *= part.size;
  }
  stride = threadStride;
  for (const part of parts.spatial.toReversed()) {
    placed.set(part, { stride });
    stride *= part.size;
  }
  const modes = (list: readonly Part[]): PackMode[] =>
    list.filter((part) => part.size > 1).map((part) => ({ size: part.size, ...placed.get(part)! }));
  return { rows: modes(rows), columns: modes(columns), bits: stride };
}

function gcd(a: number, b: number): number {
  return b === 0 ? a : gcd(b, a % b);
}
