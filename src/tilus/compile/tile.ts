import { canonical } from '../../layout/canonical.js';
import { takeApart } from '../../layout/parts.js';
import { gcd } from '../check/functions.js';
import { layoutMap } from '../check/layout-map.js';
import type { MemoryTensor, Place, RegisterTensor } from '../check/program.js';
import type { Expr } from '../language/ast.js';
import { bitsText, cpp, sum } from './text.js';
import type { Unit } from './unit.js';

/** Names of the dimensions of a place, innermost last. */
export const axisNames = (rank: number): readonly string[] =>
  ['column', 'row', 'slice', ...Array.from({ length: Math.max(0, rank - 3) }, (_, i) => `slice_${i + 2}`)]
    .slice(0, rank)
    .toReversed();

/** A step through a thread's elements: a mode of its local index. */
export interface LocalMode {
  readonly size: number;
  /** The dimension of the tile, and the length of a step in it. */
  readonly dim: number;
  readonly step: number;
  /** Elements of the thread between two steps. */
  readonly flat: number;
}

/** The access of a tile of registers to a tensor: a thread's share of the index, the steps of its elements, the width of a vector. */
export interface Tile {
  readonly axes: readonly number[];
  /** For each dimension of the tensor: the offset plus the thread's share. */
  readonly index: readonly string[];
  readonly modes: readonly LocalMode[];
  /** Elements that are contiguous in memory and in the thread. */
  readonly vector: number;
  /** Dimensions in which a tile may reach beyond the tensor's end. */
  readonly masked: readonly number[];
  /** The condition for threads that are the first of their replicas; '' if there are no replicas. */
  readonly first: string;
}

export const strideOf = (tensor: MemoryTensor, axis: number): Expr => tensor.modes[axis]![0]!.stride;
/** Row-major, or any order in which each dimension has one stride. */
export const isStrided = (tensor: MemoryTensor): boolean => tensor.modes.every((modes) => modes.length === 1);

/** Plans a load or a store. */
export function planTile(unit: Unit, tensor: MemoryTensor, place: Place, registers: RegisterTensor): Tile | string {
  const modes = localModes(registers);
  const map = layoutMap(registers.layout);
  const thread = registers.layout.shape.map((_, dim) =>
    bitsText(
      'thread',
      Int32Array.from({ length: map.threads }, (_, t) => map.coordinates[dim]![t * map.locals]!),
    ),
  );
  if (thread.includes(undefined)) return 'the elements of its layout are not sums over bits of the thread number';
  const index = place.offset.map((offset, axis) => {
    const dim = place.axes.indexOf(axis);
    return sum(offset.kind === 'number' && offset.value === 0 ? '' : cpp(offset, 5), dim < 0 ? '' : thread[dim]!);
  });
  const masked = place.offset.flatMap((offset, axis) => {
    const size = tensor.shape[axis]!;
    const dim = place.axes.indexOf(axis);
    const last = unit.ranges.of(offset).high + (dim < 0 ? 1 : registers.layout.shape[dim]!);
    return tensor.scope === 'shared' || (size.kind === 'number' && last <= size.value) ? [] : [axis];
  });
  const spread = layoutMap(registers.layout).first;
  const first = spread.includes(0) ? firstText(registers) : '';
  if (first === undefined) return 'its replicas are not bits of the thread number';
  const vector = vectorOf(unit, tensor, place, registers, modes, masked);
  return { axes: place.axes, index, modes: divided(modes, vector), vector, masked, first };
}

function localModes(registers: RegisterTensor): LocalMode[] {
  const parts = takeApart(canonical(registers.layout));
  let flat = 1;
  const out: LocalMode[] = [];
  for (const part of parts.local.toReversed()) {
    const dim = parts.dims.findIndex((list) => list.includes(part));
    const below = parts.dims[dim]!.slice(parts.dims[dim]!.indexOf(part) + 1);
    out.unshift({ size: part.size, dim, step: below.reduce((all, each) => all * each.size, 1), flat });
    flat *= part.size;
  }
  return out;
}

/** The bits of a thread's number that tell replicas apart are 0. */
function firstText(registers: RegisterTensor): string | undefined {
  const { first, threads } = layoutMap(registers.layout);
  let mask = 0;
  for (let bit = 1; bit < threads; bit *= 2) if (first[bit] === 0) mask += bit;
  for (let t = 0; t < threads; t++) if ((first[t] === 1) !== ((t & mask) === 0)) return undefined;
  return `(thread & ${mask}) == 0`;
}

/** As many elements as one instruction moves: a power of two of bytes, at most 16, that are aligned and in one piece on both sides. */
function vectorOf(
  unit: Unit,
  tensor: MemoryTensor,
  place: Place,
  registers: RegisterTensor,
  modes: readonly LocalMode[],
  masked: readonly number[],
): number {
  const { bits } = tensor.dtype;
  const last = modes.at(-1);
  if (!isStrided(tensor) || bits === 3 || !last) return 1;
  const axis = place.axes[last.dim]!;
  const stride = strideOf(tensor, axis);
  if (stride.kind !== 'number' || stride.value !== 1 || last.step !== 1) return 1;
  // What divides every index that a piece can begin at, in elements.
  let together = last.size;
  const map = layoutMap(registers.layout);
  for (let t = 0; t < map.threads; t++) together = gcd(together, map.coordinates[last.dim]![t * map.locals]!);
  for (const mode of modes.slice(0, -1)) if (mode.dim === last.dim) together = gcd(together, mode.step);
  together = gcd(together, unit.ranges.of(place.offset[axis]!).divisor);
  for (const other of tensor.modes.keys())
    if (other !== axis) together = gcd(together, unit.ranges.of(strideOf(tensor, other)).divisor);
  if (masked.includes(axis)) together = gcd(together, unit.ranges.of(tensor.shape[axis]!).divisor);
  let vector = 1;
  while (together % (vector * 2) === 0 && vector * 2 * bits <= 128) vector *= 2;
  return (vector * bits) % 8 === 0 && [1, 2, 4, 8, 16].includes((vector * bits) / 8) ? vector : 1;
}

/** Modes of pieces: the last mode counts pieces of `vector` elements. */
function divided(modes: readonly LocalMode[], vector: number): LocalMode[] {
  const last = modes.at(-1);
  if (!last) return [];
  const pieces = { size: last.size / vector, dim: last.dim, step: last.step * vector, flat: last.flat * vector };
  return [...modes.slice(0, -1), pieces].filter((mode) => mode.size > 1);
}
