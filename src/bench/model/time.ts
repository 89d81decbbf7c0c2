import type { MeasuredRuntime, TimedCall } from '../../../native/binding.js';
import { LpqError } from '../../core/error.js';
import type { ResidentModel } from '../../generate/resident.js';
import { median } from '../kernels/time.js';
import type { ModelRow } from './schema.js';

/**
 * Of the whole model. Blocks are alike: those that were not measured take what the measured ones did. Both parts are timed by
 * themselves, since what one pass of all takes less one of a part is no time where something else runs on the machine.
 */
export async function secondsOf(
  rt: MeasuredRuntime,
  calls: readonly TimedCall[],
  model: ResidentModel,
  { passes, measured, all }: { readonly passes: number; readonly measured: number; readonly all: number },
): Promise<number> {
  const take = async (part: readonly TimedCall[]) => median(await rt.time(part, { passes }));
  if (measured === all) return take(calls);
  const { inside, outside } = apart(calls, model);
  return (await take(outside)) + ((await take(inside)) * all) / measured;
}

/** The calls of the blocks, and those before the first and after the last: embedding, final norm, head. */
function apart(
  calls: readonly TimedCall[],
  { graph }: ResidentModel,
): { readonly inside: readonly TimedCall[]; readonly outside: readonly TimedCall[] } {
  const first = calls.findIndex(({ op }) => op !== 'embedding' && op !== 'add');
  const last = calls.findIndex(({ op }) => op === 'gather_rows');
  if (first < 0 || last < 0) throw new LpqError('LPQ_INTERNAL', `the step of ${graph.architecture} has no head`);
  return { inside: calls.slice(first, last), outside: [...calls.slice(0, first), ...calls.slice(last)] };
}

const KINDS = {
  products: /^(linear|gemm_)/,
  attention: /^(attention|cached_attention|cache_append|kv_)/,
} as const;

/** Seconds of the calls of a kind, run by themselves, over those of all kinds. */
export async function sharesOf(
  rt: MeasuredRuntime,
  calls: readonly TimedCall[],
  passes: number,
): Promise<ModelRow['shares']> {
  const of = async (mine: (op: string) => boolean): Promise<number> => {
    const own = calls.filter(({ op }) => mine(op));
    return own.length === 0 ? 0 : median(await rt.time(own, { passes: Math.min(passes, 5) }));
  };
  const products = await of((op) => KINDS.products.test(op));
  const attention = await of((op) => KINDS.attention.test(op));
  const rest = await of((op) => !KINDS.products.test(op) && !KINDS.attention.test(op));
  const all = products + attention + rest;
  return { products: products / all, attention: attention / all, rest: rest / all };
}
