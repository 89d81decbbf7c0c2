import { allocate, type Tensor, typed } from '../../native/binding.js';
import { LpqError } from '../core/error.js';
import type { FoldSite } from './fold-axes.js';
import { expertSource } from './fused-experts.js';
import { unusedTensors } from './graph.js';
import type { ModelGraph } from './program.js';
import type { ScaleSite } from './scale-sites.js';
import type { WeightSource } from './source.js';

/** Changes a tensor on its way out of a checkpoint: a new one, or the same. `stored`: as the checkpoint has it, [K, N] for a Conv1D. */
export type TensorRewrite = (name: string, tensor: Tensor) => Tensor;

/** A permutation of each site, by its id; sites without one stay. New channel j is old channel order[j]. */
export type Permutations = ReadonlyMap<string, Int32Array>;

/**
 * Sites that must stay as they are, with the reason. A tensor that the graph does not use but that has an axis of the
 * stream's size may read or write the stream (blocks of multi-token prediction, a vision tower's projector): it would go
 * on in the old order.
 */
export function refusedSites(source: WeightSource, graph: ModelGraph, sites: readonly FoldSite[]): Map<string, string> {
  const view = expertSource(source);
  const refused = new Map<string, string>();
  for (const site of sites) {
    if (site.kind !== 'residual') continue;
    const stray = unusedTensors(source, graph).find((name) => view.shape(name).includes(site.size));
    if (stray !== undefined)
      refused.set(
        site.id,
        `'${stray}', which ${graph.architecture}'s graph does not use, has an axis of ${site.size} and may read or write the residual stream`,
      );
  }
  return refused;
}

/** The rewrite that folds permutations into a model's tensors. Throws LPQ_INTERNAL for one that is none. */
export function foldRewrite(
  sites: readonly FoldSite[],
  permutations: Permutations,
  transposed: ReadonlySet<string>,
): TensorRewrite {
  /** By tensor: what each axis lists after the fold, as runs to permute. */
  const edits = new Map<string, { axis: 0 | 1; starts: readonly number[]; order: Int32Array }[]>();
  for (const { id, size, axes } of sites) {
    const order = permutations.get(id);
    if (!order) continue;
    checkPermutation(id, order, size);
    for (const { tensor, axis, starts } of axes) {
      const list = edits.get(tensor) ?? [];
      list.push({ axis, starts, order });
      edits.set(tensor, list);
    }
  }
  return (name, tensor) => {
    const list = edits.get(name);
    if (!list) return tensor;
    const turned = transposed.has(name);
    const maps: [Int32Array | undefined, Int32Array | undefined] = [undefined, undefined];
    for (const { axis, starts, order } of list) {
      const stored = turned ? ((1 - axis) as 0 | 1) : axis;
      const map = maps[stored] ?? Int32Array.from({ length: tensor.shape[stored] as number }, (_, i) => i);
      for (const start of starts) for (let j = 0; j < order.length; j++) map[start + j] = start + (order[j] as number);
      maps[stored] = map;
    }
    return permuted(tensor, maps[0], maps[1]);
  };
}

/**
 * The rewrite that multiplies channels by powers of two, by site: exponents[j] of channel j. bf16 and f32 keep every bit;
 * f16 rounds what falls below 2^-14. Throws LPQ_MODULE_NUMERICS naming the tensor where a weight leaves its dtype's range.
 */
export function scaleRewrite(
  sites: readonly ScaleSite[],
  exponents: ReadonlyMap<string, Int32Array>,
  transposed: ReadonlySet<string>,
): TensorRewrite {
  const edits = new Map<string, { axis: 0 | 1; starts: readonly number[]; by: Int32Array; sign: 1 | -1 }[]>();
  for (const { id, raise, lower } of sites) {
    const by = exponents.get(id);
    if (!by) continue;
    for (const [axes, sign] of [[raise, 1] as const, [lower, -1] as const])
      for (const { tensor, axis, starts } of axes)
        edits.set(tensor, [...(edits.get(tensor) ?? []), { axis, starts, by, sign }]);
  }
  return (name, tensor) => {
    const list = edits.get(name);
    if (!list) return tensor;
    const [rows = 1, columns = 1] = tensor.shape as [number, number?];
    const power = [new Int32Array(rows), new Int32Array(columns)] as const;
    for (const { axis, starts, by, sign } of list) {
      const axisPower = power[transposed.has(name) ? 1 - axis : axis] as Int32Array;
      for (const start of starts)
        for (let j = 0; j < by.length; j++)
          axisPower[start + j] = (axisPower[start + j] as number) + sign * (by[j] as number);
    }
    return raised(name, tensor, power[0], power[1]);
  };
}

function raised(name: string, tensor: Tensor, rows: Int32Array, columns: Int32Array): Tensor {
  const made = allocate(tensor.dtype, tensor.shape);
  const [from, to] = [typed<Float32Array | Uint16Array>(tensor), typed<Float32Array | Uint16Array>(made)];
  const multiply = MULTIPLY[tensor.dtype];
  if (!multiply)
    throw new LpqError('LPQ_DTYPE', `channels of '${name}' cannot be scaled`, {
      got: tensor.dtype,
      expected: Object.keys(MULTIPLY).join(', '),
    });
  const width = columns.length;
  for (let r = 0; r < rows.length; r++)
    for (let c = 0; c < width; c++) {
      const result = multiply(from[r * width + c] as number, (rows[r] as number) + (columns[c] as number));
      if (result === undefined)
        throw new LpqError('LPQ_MODULE_NUMERICS', `'${name}' leaves the range of ${tensor.dtype} when scaled`, {
          got: `row ${r}, column ${c}, 2^${(rows[r] as number) + (columns[c] as number)}`,
          hint: 'Use --act-scale 0.',
        });
      to[r * width + c] = result;
    }
  return made;
}

/** An element as typed() gives it times 2^power; undefined where that is out of range. */
const MULTIPLY: Partial<Record<Tensor['dtype'], (element: number, power: number) => number | undefined>> = {
  f32(value, power) {
    const result = value * 2 ** power;
    return Number.isFinite(value) && Math.fround(result) !== result ? undefined : result;
  },
  bf16(bits, power) {
    const exponent = (bits >> 7) & 255;
    if (power === 0 || exponent === 255 || (bits & 0x7fff) === 0) return bits;
    const moved = exponent + power;
    return exponent === 0 || moved <= 0 || moved >= 255 ? undefined : (bits & 0x807f) | (moved << 7);
  },
  f16(bits, power) {
    const exponent = (bits >> 10) & 31;
    if (power === 0 || exponent === 31 || (bits & 0x7fff) === 0) return bits;
    const sign = bits & 0x8000;
    const size = (exponent === 0 ? bits & 1023 : 1024 + (bits & 1023)) * 2 ** (Math.max(exponent, 1) - 25 + power);
    if (size > 65504) return undefined;
    if (size >= 2 ** -14) {
      const top = Math.floor(Math.log2(size));
      return sign | ((top + 15) << 10) | (size * 2 ** (10 - top) - 1024);
    }
    const units = size * 2 ** 24;
    const low = Math.floor(units);
    const rest = units - low;
    return sign | (rest > 0.5 || (rest === 0.5 && low % 2 === 1) ? low + 1 : low);
  },
};

/** A source whose tensors pass through a rewrite; what it rewrites must be in floats. */
export function rewrittenSource(source: WeightSource, rewrite: TensorRewrite): WeightSource {
  const view = expertSource(source);
  return {
    dir: source.dir,
    config: source.config,
    names: () => view.names(),
    has: (name) => view.has(name),
    shape: (name) => view.shape(name),
    async tensor(name) {
      const tensor = await view.tensor(name);
      const made = rewrite(name, tensor);
      if (made !== tensor) tensor.dispose();
      return made;
    },
  };
}

/** Rows and columns of a tensor [R], [R, C] in another order: index i takes what was at map[i]. The bytes stay the same. */
export function permuted(tensor: Tensor, rows: Int32Array | undefined, columns: Int32Array | undefined): Tensor {
  const [count = 1, width = 1] = tensor.shape as [number, number?];
  const size = tensor.byteLength / (count * width);
  const made = allocate(tensor.dtype, tensor.shape);
  const from = tensor.bytes();
  const to = made.bytes();
  const line = width * size;
  // An element is one word, or two of 32 bits (f64).
  const Words = size === 2 ? Uint16Array : size % 4 === 0 ? Uint32Array : Uint8Array;
  const words = size / Words.BYTES_PER_ELEMENT;
  const row = new Uint8Array(line);
  const [source, target] = [new Words(row.buffer), new Words(width * words)];
  for (let r = 0; r < count; r++) {
    const at = (rows ? (rows[r] as number) : r) * line;
    if (!columns) {
      to.set(from.subarray(at, at + line), r * line);
      continue;
    }
    row.set(from.subarray(at, at + line));
    for (let c = 0; c < width; c++)
      for (let word = 0; word < words; word++)
        target[c * words + word] = source[(columns[c] as number) * words + word] as number;
    to.set(new Uint8Array(target.buffer), r * line);
  }
  return made;
}

function checkPermutation(site: string, order: Int32Array, size: number): void {
  const seen = new Uint8Array(size);
  for (const index of order) if (index >= 0 && index < size) seen[index] = 1;
  if (order.length === size && seen.every(Boolean)) return;
  throw new LpqError('LPQ_INTERNAL', `the order to fold into ${site} is not a permutation of ${size} channels`, {
    got: `${order.length} entries, ${seen.reduce((sum, one) => sum + one, 0)} different`,
  });
}
