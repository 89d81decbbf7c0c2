import type { DotPlan } from '../check/dot.js';
import { layoutMap } from '../check/layout-map.js';
import type { RegisterTensor } from '../check/program.js';
import { decode, decodeTable, type ElementType, encode } from '../types.js';

/** What a tensor of registers holds: the bits of element `local` of `thread` at thread * locals + local. */
export type Registers = Uint32Array;

/** The numbers of registers. */
export function numbers(type: ElementType, held: Registers): Float64Array {
  const out = new Float64Array(held.length);
  if (type.bits <= 16) {
    const table = decodeTable(type);
    for (let i = 0; i < held.length; i++) out[i] = table[held[i]!]!;
  } else for (let i = 0; i < held.length; i++) out[i] = decode(type, held[i]!);
  return out;
}

/** Registers of numbers, each rounded to the type. */
export function rounded(type: ElementType, values: Float64Array): Registers {
  const out = new Uint32Array(values.length);
  if (type.name === 'f32') new Float32Array(out.buffer).set(values);
  else for (let i = 0; i < out.length; i++) out[i] = encode(type, values[i]!);
  return out;
}

/** Cast: each number rounded to the type. A type of at most 8 bits goes through a table. */
export function cast(from: ElementType, to: ElementType, held: Registers): Registers {
  if (from === to) return held.slice();
  if (from.bits > 8) return rounded(to, numbers(from, held));
  const table = rounded(to, decodeTable(from));
  return held.map((code) => table[code]!);
}

/** View: the bits of each thread, one element after another from the lowest, cut anew. */
export function view(from: RegisterTensor, to: RegisterTensor, held: Registers): Registers {
  const before = layoutMap(from.layout);
  const after = layoutMap(to.layout);
  if (from.dtype.bits === to.dtype.bits) return held.slice();
  const [wide, narrow] = [from.dtype.bits, to.dtype.bits];
  const out = new Uint32Array(after.threads * after.locals);
  for (let thread = 0; thread < after.threads; thread++)
    for (let local = 0; local < after.locals; local++) {
      let value = 0;
      for (let bit = local * narrow, done = 0; done < narrow; ) {
        const word = held[thread * before.locals + Math.floor(bit / wide)]!;
        // Less than 32, for one of the two types is narrower.
        const take = Math.min(wide - (bit % wide), narrow - done);
        value |= ((word >>> (bit % wide)) & ((1 << take) - 1)) << done;
        bit += take;
        done += take;
      }
      out[thread * after.locals + local] = value;
    }
  return out;
}

/**
 * Dot: warp by warp, tile by tile as the plan says. An instruction adds its products to c exactly and rounds once (f32), or is exact (i32);
 * k ascends.
 */
export function dot(
  plan: DotPlan,
  [a, b, c]: readonly [RegisterTensor, RegisterTensor, RegisterTensor],
  held: readonly [Registers, Registers, Registers],
): Registers {
  const { mma } = plan;
  const warps = layoutMap(a.layout).threads / 32;
  const out = new Uint32Array(held[2]);
  const sums = mma.sum === 'f32' ? new Float32Array(out.buffer) : new Int32Array(out.buffer);
  const [rowMap, columnMap, sumMap] = [layoutMap(mma.a), layoutMap(mma.b), layoutMap(mma.c)];
  const per = sumMap.locals;
  const tiles = layoutMap(c.layout).locals / per;
  for (let warp = 0; warp < warps; warp++) {
    const rows = dense(a, held[0], warp, rowMap, 0);
    const columns = dense(b, held[1], warp, columnMap, 1);
    const tile = new Float64Array(128);
    for (let at = 0; at < tiles; at++) {
      const first = warp * 32 * tiles * per + at * per;
      const place = (i: number): number => first + Math.floor(i / per) * tiles * per + (i % per);
      for (let i = 0; i < 128; i++) tile[sumMap.index[i]!] = sums[place(i)]!;
      for (const step of plan.steps)
        if (step.c === at) multiply(tile, rows[step.a]!, columns[step.b]!, mma.k, mma.sum === 'f32');
      for (let i = 0; i < 128; i++) sums[place(i)] = tile[sumMap.index[i]!]!;
    }
  }
  return out;
}

type Map = ReturnType<typeof layoutMap>;

/** The tiles of an operand that a warp holds, as numbers with the one of its dimensions along k last. */
function dense(tensor: RegisterTensor, held: Registers, warp: number, atom: Map, major: 0 | 1): Float64Array[] {
  const { locals } = layoutMap(tensor.layout);
  const table = decodeTable(tensor.dtype);
  const [row, column] = [atom.coordinates[major]!, atom.coordinates[1 - major]!];
  const depth = atom.shape[1 - major]!;
  const places = row.map((at, i) => at * depth + column[i]!);
  return Array.from({ length: locals / atom.locals }, (_, tile) => {
    const out = new Float64Array(places.length);
    for (let lane = 0; lane < 32; lane++)
      for (let i = 0; i < atom.locals; i++)
        out[places[lane * atom.locals + i]!] = table[held[(warp * 32 + lane) * locals + tile * atom.locals + i]!]!;
    return out;
  });
}

function multiply(tile: Float64Array, rows: Float64Array, columns: Float64Array, depth: number, single: boolean): void {
  for (let m = 0; m < 16; m++)
    for (let n = 0; n < 8; n++) {
      let sum = tile[m * 8 + n]!;
      for (let k = 0; k < depth; k++) sum += rows[m * depth + k]! * columns[n * depth + k]!;
      tile[m * 8 + n] = single ? Math.fround(sum) : sum | 0;
    }
}
