import { addon, allocate, type Tensor, threadCount } from '../../native/binding.js';
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

/** Dtypes of which raised() knows the elements. */
const SCALED: readonly Tensor['dtype'][] = ['f32', 'bf16', 'f16'];

function raised(name: string, tensor: Tensor, rows: Int32Array, columns: Int32Array): Tensor {
  if (!SCALED.includes(tensor.dtype))
    throw new LpqError('LPQ_DTYPE', `channels of '${name}' cannot be scaled`, {
      got: tensor.dtype,
      expected: SCALED.join(', '),
    });
  const made = allocate(tensor.dtype, tensor.shape);
  const bad = addon().raiseMatrix(tensor, made, rows, columns, threadCount());
  if (bad < 0) return made;
  made.dispose();
  const [row, column] = [Math.floor(bad / columns.length), bad % columns.length];
  throw new LpqError('LPQ_MODULE_NUMERICS', `'${name}' leaves the range of ${tensor.dtype} when scaled`, {
    got: `row ${row}, column ${column}, 2^${(rows[row] as number) + (columns[column] as number)}`,
    hint: 'Use --act-scale 0.',
  });
}

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
  const made = allocate(tensor.dtype, tensor.shape);
  addon().permuteMatrix(tensor, made, rows, columns, threadCount());
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
