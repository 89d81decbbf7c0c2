import type { MeasuredRuntime, TimedCall } from '../../native/binding.js';
import { tell } from '../../src/core/activity.js';
import { median } from '../kernels/time.js';
import type { ModelRow } from './schema.js';

export interface StepTiming {
  readonly passes: number;
  /** Blocks that the calls run, and those of the whole model. */
  readonly measured: number;
  readonly all: number;
  /** Steps of which one packs what a cache has gathered: `kv_pack` counts once in so many. */
  readonly packEvery: number;
  /** The calls of the blocks: from `first` to before `end`. */
  readonly blocks: { readonly first: number; readonly end: number };
}

/** Calls, and how often the whole model runs them. */
interface Part {
  readonly calls: readonly TimedCall[];
  readonly times: number;
}

/**
 * Seconds of the whole model. Blocks are alike: those that were not measured take what the measured ones did. Parts are timed by
 * themselves, since what one pass of all takes less one of a part is no time where something else runs on the machine.
 */
export async function secondsOf(rt: MeasuredRuntime, calls: readonly TimedCall[], timing: StepTiming): Promise<number> {
  // Parts by themselves read what others leave, which must be numbers.
  if (timing.measured !== timing.all) await rt.time(calls, { passes: 1 });
  return secondsOfParts(rt, partsOf(calls, timing), timing.passes);
}

/** Whose calls are products, and whose are attention and its cache. */
const KINDS = {
  products: /^(linear|gemm_)/,
  attention: /^(attention|cached_attention|cache_append|rope_append|kv_)/,
} as const;

/** Seconds of the calls of each operation, run by themselves, over those of all; and their sums over kinds. */
export async function sharesOf(
  rt: MeasuredRuntime,
  calls: readonly TimedCall[],
  timing: StepTiming,
): Promise<Pick<ModelRow, 'shares' | 'kernels'>> {
  const parts = partsOf(calls, timing);
  const passes = Math.min(timing.passes, 5);
  const seconds = new Map<string, number>();
  const names = [...new Set(calls.map((call) => call.op))];
  for (const [i, op] of names.entries()) {
    tell(`timing ${op} alone`, i, names.length);
    const own = parts.map((part) => ({ ...part, calls: part.calls.filter((call) => call.op === op) }));
    seconds.set(op, await secondsOfParts(rt, own, passes));
  }
  const all = [...seconds.values()].reduce((sum, each) => sum + each, 0);
  const kernels = [...seconds].map(([op, each]) => [op, each / all] as const).sort(([, a], [, b]) => b - a);
  const of = (mine: (op: string) => boolean) =>
    kernels.filter(([op]) => mine(op)).reduce((sum, [, share]) => sum + share, 0);
  return {
    shares: {
      products: of((op) => KINDS.products.test(op)),
      attention: of((op) => KINDS.attention.test(op)),
      rest: of((op) => !Object.values(KINDS).some((kind) => kind.test(op))),
    },
    kernels: Object.fromEntries(kernels),
  };
}

async function secondsOfParts(rt: MeasuredRuntime, parts: readonly Part[], passes: number): Promise<number> {
  let sum = 0;
  for (const { calls, times } of parts) if (calls.length > 0) sum += times * median(await rt.time(calls, { passes }));
  return sum;
}

function partsOf(calls: readonly TimedCall[], { measured, all, packEvery, blocks }: StepTiming): readonly Part[] {
  const packs = packEvery > 1 ? calls.filter(({ op }) => op === 'kv_pack') : [];
  const rest = (part: readonly TimedCall[]) => (packs.length === 0 ? part : part.filter(({ op }) => op !== 'kv_pack'));
  const packing = { calls: packs, times: all / measured / packEvery };
  if (measured === all) return [{ calls: rest(calls), times: 1 }, packing];
  const outside = [...calls.slice(0, blocks.first), ...calls.slice(blocks.end)];
  const inside = calls.slice(blocks.first, blocks.end);
  return [{ calls: rest(outside), times: 1 }, { calls: rest(inside), times: all / measured }, packing];
}
