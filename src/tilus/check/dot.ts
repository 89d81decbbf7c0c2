import { MMA_M16N8K16, MMA_M16N8K32, MMA_M16N8K64 } from '../../layout/fragment.js';
import type { Layout } from '../../layout/layout.js';
import type { ElementType } from '../types.js';
import { divide, type Quotient } from './layout-map.js';

/** A product of the tensor cores: c [m, n] += a [m, k] b [k, n] by the 32 threads of a warp. */
export interface Mma {
  readonly name: string;
  readonly operand: string;
  readonly sum: 'f32' | 'i32';
  readonly k: number;
  readonly a: Layout;
  readonly b: Layout;
  readonly c: Layout;
}

const { c } = MMA_M16N8K16;
export const MMAS: readonly Mma[] = [
  { name: 'm16n8k16', operand: 'f16', sum: 'f32', k: 16, ...MMA_M16N8K16 },
  { name: 'm16n8k16', operand: 'bf16', sum: 'f32', k: 16, ...MMA_M16N8K16 },
  { name: 'm16n8k32', operand: 'i8', sum: 'i32', k: 32, ...MMA_M16N8K32, c },
  { name: 'm16n8k64', operand: 'i4', sum: 'i32', k: 64, ...MMA_M16N8K64, c },
];

/** The product of operands of this type. */
export function mmaOf(operand: ElementType): Mma | undefined {
  return MMAS.find((each) => each.operand === operand.name);
}

/** What every warp does: tile `c` += tile `a` x tile `b`, numbered as they lie in a thread; k ascends for each c. */
export interface DotPlan {
  readonly mma: Mma;
  readonly steps: readonly { readonly a: number; readonly b: number; readonly c: number }[];
}

interface Operands {
  readonly a: { readonly dtype: ElementType; readonly layout: Layout };
  readonly b: { readonly dtype: ElementType; readonly layout: Layout };
  readonly c: { readonly dtype: ElementType; readonly layout: Layout };
}

/** The plan of a Dot, or the sentence why there is none. */
export function planDot({ a, b, c: sum }: Operands): DotPlan | string {
  const mma = MMAS.find((each) => each.operand === a.dtype.name);
  if (!mma) return `no mma multiplies ${a.dtype.name}: Cast to ${MMAS.map((each) => each.operand).join(', ')}`;
  if (b.dtype.name !== mma.operand) return `a is ${a.dtype.name} and b ${b.dtype.name}; an mma takes one type`;
  if (sum.dtype.name !== mma.sum)
    return `products of ${mma.operand} are summed in ${mma.sum}, not in ${sum.dtype.name}`;
  if ([a, b, sum].some((each) => each.layout.shape.length !== 2)) return 'a, b and c must have two dimensions';
  const [m, k] = a.layout.shape as [number, number];
  const [, n] = b.layout.shape as [number, number];
  if (b.layout.shape[0] !== k || sum.layout.shape[0] !== m || sum.layout.shape[1] !== n)
    return `shapes [${a.layout.shape}] x [${b.layout.shape}] do not give [${sum.layout.shape}]`;
  const parts = [divide(a.layout, mma.a), divide(b.layout, mma.b), divide(sum.layout, mma.c)] as const;
  for (const [i, part] of parts.entries())
    if (!part)
      return `the layout of ${'abc'[i]} is not a product whose last factor is operand ${'abc'[i]} of mma.${mma.name}`;
  return order(mma, parts as readonly [Quotient, Quotient, Quotient], k / mma.k);
}

function order(mma: Mma, [a, b, sum]: readonly [Quotient, Quotient, Quotient], depth: number): DotPlan | string {
  const steps: DotPlan['steps'][number][] = [];
  const held = (of: Quotient, warp: number, row: number, column: number): number => {
    for (let tile = 0; tile < of.tiles; tile++) {
      const at = warp * of.tiles + tile;
      if (of.coordinates[0]![at] === row && of.coordinates[1]![at] === column) return tile;
    }
    return -1;
  };
  for (let warp = 0; warp < sum.groups; warp++) {
    let step = 0;
    for (let tile = 0; tile < sum.tiles; tile++) {
      const [row, column] = sum.coordinates.map((of) => of[warp * sum.tiles + tile]!) as [number, number];
      for (let k = 0; k < depth; k++, step++) {
        const found = { a: held(a, warp, row, k), b: held(b, warp, k, column), c: tile };
        const missing = found.a < 0 ? 'a' : found.b < 0 ? 'b' : undefined;
        if (missing !== undefined)
          return `warp ${warp} holds a tile of c, but another warp holds its tiles of ${missing}`;
        if (warp === 0) steps.push(found);
        else if (steps[step]!.a !== found.a || steps[step]!.b !== found.b)
          return `warp ${warp} holds its tiles in another order than warp 0`;
      }
    }
  }
  return { mma, steps };
}
