import { LpqError } from '../core/error.js';

/** A factor of a dimension and the distance, in bits, between elements that differ by one in it. */
export interface PackMode {
  readonly size: number;
  readonly stride: number;
  /** Counted along a stream that is cut into units (see MemoryLayout.unit), instead of as an address. */
  readonly stream?: true;
}

/**
 * Where every element of a rows x columns matrix lies in a block of memory. Weights are [N, K]: rows are output features.
 *
 * An element's first bit is base + the sum of digit * stride over the modes of its row and column; each dimension is the
 * product of its modes, most significant first. With a `unit`, the stream modes' sum p counts along a bitstream cut into
 * units of `unit.bits` that lie `unit.stride` bits apart: it contributes (p / unit) * stride + p % unit. Fixed patterns
 * of nibbles are modes with small strides; bits that belong to no element are 0.
 */
export interface MemoryLayout {
  /** Width of an element: 1 to 8 bits (codes), 16 or 32 (scales). */
  readonly bits: number;
  readonly rows: readonly PackMode[];
  readonly columns: readonly PackMode[];
  readonly unit?: { readonly bits: number; readonly stride: number };
  /**
   * The word order: a permutation of every `wordOrder.length` bits of a stream, which comes before the cutting into units.
   * Stream bit p is stored in the place of p - q + wordOrder[q], q = p % wordOrder.length.
   */
  readonly wordOrder?: readonly number[];
  readonly base?: number;
  /** Size of the block. */
  readonly bytes: number;
}

/** Checks that no two elements overlap or leave the block, and freezes. Throws LPQ_LAYOUT. */
export function memoryLayout(value: MemoryLayout): MemoryLayout {
  const fail = (why: string, got: unknown): never => {
    throw new LpqError('LPQ_LAYOUT', `a pack layout of ${value.bits}-bit elements is wrong: ${why}`, { got });
  };
  const { bits, unit, wordOrder, base = 0 } = value;
  if (!((bits >= 1 && bits <= 8) || bits === 16 || bits === 32) || !Number.isInteger(bits))
    fail('elements are 1 to 8, 16 or 32 bits wide', bits);
  if (unit && (unit.bits < bits || unit.bits % 8 !== 0)) fail('a unit is whole bytes and holds an element', unit);
  const modes = [...value.rows, ...value.columns];
  if (wordOrder && !unit) fail('a word order needs a unit', wordOrder.length);
  if (wordOrder?.toSorted((a, b) => a - b).some((bit, i) => bit !== i))
    fail('a word order names every bit once', wordOrder);
  for (const mode of modes) {
    if (!Number.isSafeInteger(mode.size) || mode.size < 1) fail('sizes are positive integers', mode);
    if (!Number.isSafeInteger(mode.stride) || mode.stride < 0) fail('strides are whole bits', mode);
    if (mode.stream && !unit) fail('a stream mode needs a unit', mode);
  }
  const nested = (list: readonly PackMode[], element: number): void => {
    let below = element;
    for (const mode of list.filter((each) => each.size > 1).toSorted((a, b) => a.stride - b.stride)) {
      if (mode.stride < below)
        fail(
          `a stride of ${mode.stride} bits is smaller than the ${below} bits below it, so elements may overlap`,
          mode,
        );
      below = mode.stride * mode.size;
    }
  };
  const addresses = modes.filter((mode) => !mode.stream);
  const streams = modes.filter((mode) => mode.stream);
  let end = base + reach(addresses) + bits;
  if (unit) {
    const period = wordOrder?.length ?? 1;
    const units = Math.ceil((Math.ceil((reach(streams) + bits) / period) * period) / unit.bits);
    nested(streams, bits);
    addresses.push({ size: units, stride: unit.stride });
    nested(addresses, unit.bits);
    end = base + reach(addresses) + unit.bits;
  } else nested(addresses, bits);
  if (end > value.bytes * 8) fail(`it reaches bit ${end} of a block of ${value.bytes} bytes`, value.bytes);
  return Object.freeze({
    ...value,
    ...(wordOrder && { wordOrder: Object.freeze([...wordOrder]) }),
    rows: Object.freeze(value.rows.map((mode) => Object.freeze({ ...mode }))),
    columns: Object.freeze(value.columns.map((mode) => Object.freeze({ ...mode }))),
  });
}

/** Rows and columns the layout holds. */
export function extents(value: MemoryLayout): [number, number] {
  return [extent(value.rows), extent(value.columns)];
}

/** Where each bit of element (row, column) lies, lowest first: the definition that the engine is tested against. */
export function bitPositions(value: MemoryLayout, row: number, column: number): number[] {
  const along = (modes: readonly PackMode[], index: number, stream: boolean): number => {
    let rest = index;
    let sum = 0;
    for (const mode of modes.toReversed()) {
      if ((mode.stream ?? false) === stream) sum += (rest % mode.size) * mode.stride;
      rest = Math.floor(rest / mode.size);
    }
    return sum;
  };
  const address = (value.base ?? 0) + along(value.rows, row, false) + along(value.columns, column, false);
  const start = along(value.rows, row, true) + along(value.columns, column, true);
  return Array.from({ length: value.bits }, (_, bit) => {
    if (!value.unit) return address + bit;
    const { wordOrder } = value;
    const q = wordOrder ? (start + bit) % wordOrder.length : 0;
    const p = wordOrder ? start + bit - q + wordOrder[q]! : start + bit;
    return address + Math.floor(p / value.unit.bits) * value.unit.stride + (p % value.unit.bits);
  });
}

/** Repeats a tile: its outer modes come first. `strides` in bits, one a dimension. */
export function repeatTile(
  tile: Pick<MemoryLayout, 'rows' | 'columns'>,
  counts: readonly [number, number],
  strides: readonly [number, number],
): Pick<MemoryLayout, 'rows' | 'columns'> {
  return {
    rows: [{ size: counts[0], stride: strides[0] }, ...tile.rows],
    columns: [{ size: counts[1], stride: strides[1] }, ...tile.columns],
  };
}

function extent(modes: readonly PackMode[]): number {
  return modes.reduce((all, mode) => all * mode.size, 1);
}

function reach(modes: readonly PackMode[]): number {
  return modes.reduce((sum, mode) => sum + (mode.size - 1) * mode.stride, 0);
}
