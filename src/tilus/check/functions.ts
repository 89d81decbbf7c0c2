import { canonical } from '../../layout/canonical.js';
import { WGMMA_M64N8K16 } from '../../layout/fragment.js';
import { type Layout, layout, localCount, threadCount } from '../../layout/layout.js';
import { columnLocal, columnSpatial, local, spatial } from '../../layout/make.js';
import { assemble, takeApart } from '../../layout/parts.js';
import { product } from '../../layout/product.js';
import type { ElementType } from '../types.js';
import { type Mma, mmaOf } from './dot.js';
import type { Value } from './fold.js';

/** Layouts of numbers (Tilus, section 4.1). `column` is the name that Fig. 9 has for column_local. */
export const PRIMITIVES = {
  local: (sizes: number[]) => local(...sizes),
  spatial: (sizes: number[]) => spatial(...sizes),
  column_local: (sizes: number[]) => columnLocal(...sizes),
  column: (sizes: number[]) => columnLocal(...sizes),
  column_spatial: (sizes: number[]) => columnSpatial(...sizes),
} satisfies Record<string, (sizes: number[]) => Layout>;

export const isPrimitive = (name: string): name is keyof typeof PRIMITIVES => Object.hasOwn(PRIMITIVES, name);
export const isLayout = (value: Value): value is Layout => typeof value === 'object' && 'modeShape' in value;

type Make = (args: readonly Value[]) => Value | undefined;

/** Functions of constants; undefined for arguments that they do not take. */
export const FUNCTIONS: Readonly<Record<string, Make>> = {
  gcd: ([a, b]) => (isNumber(a) && isNumber(b) ? gcd(a, b) : undefined),
  min: ([a, b]) => (isNumber(a) && isNumber(b) ? Math.min(a, b) : undefined),
  max: ([a, b]) => (isNumber(a) && isNumber(b) ? Math.max(a, b) : undefined),
  ceil_div: ([a, b]) => (isNumber(a) && isNumber(b) && b !== 0 ? Math.ceil(a / b) : undefined),
  bits: ([type]) => (isElement(type) ? type.bits : undefined),
  is_float: ([type]) => (isElement(type) ? Number(type.kind === 'float') : undefined),
  /** Threads of a layout that hold the same elements: replicate(r), of rank 2, or replicate(r, rank). */
  replicate: ([count, rank = 2]) => {
    if (!isNumber(count) || !isNumber(rank) || count < 1) return undefined;
    const ones = Array.from({ length: rank }, () => 1);
    return product(layout(ones, [], [-count], []), local(...ones));
  },
  /** Any layout by its four attributes (Tilus, section 5): layout([16, 8], [2, 8, 4, 2], [1, 2], [0, 3]). */
  layout: (args) => {
    if (args.length !== 4 || !args.every((each): each is readonly Value[] => Array.isArray(each))) return undefined;
    const lists = args.map((list) => list.filter(isNumber));
    if (lists.some((list, i) => list.length !== args[i]!.length)) return undefined;
    return layout(...(lists as [number[], number[], number[], number[]]));
  },
  threads: ([value]) => (value !== undefined && isLayout(value) ? threadCount(value) : undefined),
  elements: ([value]) => (value !== undefined && isLayout(value) ? localCount(value) : undefined),
  size: ([value, dim]) => (value !== undefined && isLayout(value) && isNumber(dim) ? value.shape[dim] : undefined),
  collapse: ([value, dim]) => {
    if (value === undefined || !isLayout(value) || !isNumber(dim) || dim >= value.shape.length) return undefined;
    const parts = takeApart(value);
    const mine = parts.dims[dim]!;
    return assemble({
      dims: parts.dims.map((list, i) => (i === dim ? [] : list)),
      spatial: parts.spatial,
      local: parts.local.filter((part) => !mine.includes(part)),
    });
  },
  /**
   * compatible(T, L): the layout of u8 that has as many threads and bytes a thread as L of type T, and loads 16 bytes of a thread at once
   * where they divide: local(n2).spatial(T).local(n1), n1 = gcd(n, 16) (Tilus, section 7.2).
   */
  compatible: ([type, value]) => {
    if (!isElement(type) || value === undefined || !isLayout(value)) return undefined;
    const bytes = (type.bits * localCount(value)) / 8;
    if (!Number.isInteger(bytes)) return undefined;
    const together = gcd(bytes, 16);
    // Threads that are replicas in L are replicas of bytes, too.
    const threads = value.spatialModes.map((mode) =>
      mode < 0 ? { replicas: -mode } : { size: value.modeShape[mode]! },
    );
    const sizes = threads.flatMap((each) => (each.size === undefined ? [] : [each.size]));
    let mode = 0;
    const spatial = threads.map((each) => (each.size === undefined ? -each.replicas : ++mode));
    const modes = [bytes / together, ...sizes, together];
    return canonical(layout([modes.reduce((all, size) => all * size, 1)], modes, spatial, [0, modes.length - 1]));
  },
  wgmma_a: ([type]) => (isHalf(type) ? WGMMA_M64N8K16.a : undefined),
  wgmma_c: ([type]) => (isHalf(type) ? WGMMA_M64N8K16.c : undefined),
  mma_k: ([type]) => ofMma(type, (mma) => mma.k),
  mma_a: ([type]) => ofMma(type, (mma) => mma.a),
  mma_b: ([type]) => ofMma(type, (mma) => mma.b),
  mma_c: ([type]) => ofMma(type, (mma) => mma.c),
};

function ofMma(type: Value | undefined, part: (mma: Mma) => Value): Value | undefined {
  const mma = isElement(type) ? mmaOf(type) : undefined;
  return mma && part(mma);
}

const isHalf = (type: Value | undefined): boolean => isElement(type) && ['f16', 'bf16'].includes(type.name);
const isNumber = (value: Value | undefined): value is number => typeof value === 'number';
const isElement = (value: Value | undefined): value is ElementType =>
  typeof value === 'object' && 'bits' in value && 'exponent' in value;

export function gcd(a: number, b: number): number {
  return b === 0 ? a : gcd(b, a % b);
}
