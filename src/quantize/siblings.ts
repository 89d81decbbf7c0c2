import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import { bitsPerWeight } from './grid.js';
import type { FeedQuantizer } from './quantizer.js';
import { disposeModule, mapTensors, type QuantizedModule } from './result.js';
import { printScheme, type QuantScheme } from './scheme.js';

/** A linear of a feed: its name and its weight [N, K] (f32, f16 or bf16). */
export interface Sibling {
  readonly name: string;
  readonly weight: Tensor;
}

/**
 * Runs of `items` to be solved together, in order: linears of one feed whose schemes are equal and have a second level of
 * scales. Engines that fuse q/k/v or gate/up keep one such level for all of them, so it must be one here. Every other
 * linear is a run of its own. `schemeOf` undefined: not quantized, in no run.
 */
export function siblingRuns<T>(items: readonly T[], schemeOf: (item: T) => QuantScheme | undefined): T[][] {
  const runs: T[][] = [];
  const shared = new Map<string, T[]>();
  for (const item of items) {
    const scheme = schemeOf(item);
    if (!scheme) continue;
    const key = printScheme(scheme);
    const run = scheme.globalScale ? shared.get(key) : undefined;
    if (run) {
      run.push(item);
      continue;
    }
    runs.push([item]);
    if (scheme.globalScale) shared.set(key, runs.at(-1) as T[]);
  }
  return runs;
}

/**
 * Solves linears of one feed, one under another as a single matrix of all their rows: rows are independent of each other but
 * for the second level of scales, which is thus that of all. Returns a module for each; the caller disposes of them. Throws
 * what the quantizer throws, naming the linear that it is about.
 */
export async function solveSiblings(
  rt: NativeRuntime,
  solver: FeedQuantizer,
  siblings: readonly Sibling[],
  scheme: QuantScheme,
): Promise<QuantizedModule[]> {
  const [first, ...others] = siblings as [Sibling, ...Sibling[]];
  if (others.length === 0) return [await solver.solve(first.name, first.weight, scheme)];
  const k = first.weight.shape[1] as number;
  const rows = siblings.map(({ weight }) => weight.shape[0] as number);
  const total = rows.reduce((a, b) => a + b, 0);
  const matrix = rt.allocate('f32', [total, k]);
  try {
    let at = 0;
    for (const [i, { weight }] of siblings.entries()) {
      const part = matrix.view([rows[i] as number, k], at * k);
      ops.cast(rt, weight, part);
      part.dispose();
      at += rows[i] as number;
    }
    const names = siblings.map(({ name }) => name).join(', ');
    const whole = await solver.solve(names, matrix, scheme).catch(async (error) => {
      // The message is about the rows of all; alone, the one that is to blame gives its own.
      if (error instanceof LpqError)
        for (const { name, weight } of siblings) disposeModule(await solver.solve(name, weight, scheme));
      throw error;
    });
    return cutRows(whole, rows, k);
  } finally {
    matrix.dispose();
  }
}

/** The modules of consecutive runs of rows, as views of the whole, which is let go of with the last of them. */
function cutRows(whole: QuantizedModule, rows: readonly number[], k: number): QuantizedModule[] {
  const { scheme, quality } = whole;
  const [total] = whole.shape;
  let first = 0;
  const cut = (tensor: Tensor, count: number): Tensor => {
    const width = tensor.shape[1] as number;
    return tensor.view([count, width], first * width);
  };
  const modules = rows.map((count): QuantizedModule => {
    const module = {
      ...mapTensors(whole, (tensor) => cut(tensor, count)),
      shape: [count, k] as const,
      quality: {
        ...quality,
        bitsPerWeight: bitsPerWeight(scheme, count, k),
        ...(quality.seconds !== undefined && { seconds: (quality.seconds * count) / total }),
      },
    };
    first += count;
    return module;
  });
  disposeModule(whole);
  return modules;
}
