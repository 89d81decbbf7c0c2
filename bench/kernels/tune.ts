import type { MeasuredRuntime } from '../../native/binding.js';
import type { GemmShape } from './cases.js';
import type { Operands } from './operands.js';
import type { Tuned, Variant } from './schema.js';
import { timeProduct } from './time.js';

/** How much slower than the best setting the library's choice may be. */
export const TOLERANCE = 1.05;
const PASSES = 5;
/** The few best are measured again with the choice, in turns: differences of a percent are otherwise the device's mood. */
const FINALISTS = 4;
const ROUNDS = 3;

/** As the planners have it, whatever was found before. */
const plain = (params: Variant): Variant => ({ tuned: 0, ...params });

/** Times a product with every setting, and the library's choice beside the best of them. `onVariant` may throw. */
export async function tuneProduct(
  rt: MeasuredRuntime,
  operands: Operands,
  point: GemmShape & { readonly type: string; readonly m: number },
  space: readonly Variant[],
  onVariant: (done: number) => void = () => {},
): Promise<Tuned> {
  const { type, k, n, m } = point;
  const variants: { params: Variant; us: number }[] = [];
  let refused = 0;
  for (const [i, params] of space.entries()) {
    onVariant(i);
    try {
      variants.push({ params, us: (await timeProduct(rt, operands, m, { passes: PASSES, params: plain(params) })).us });
    } catch (error) {
      // Of a kernel that this device's code was not compiled with, the launch fails instead of the check.
      const { code } = error as { code?: string };
      if (code !== 'LPQ_NATIVE_ARGUMENT' && code !== 'LPQ_CUDA_KERNELS') throw error;
      refused++;
    }
  }
  variants.sort((a, b) => a.us - b.us);
  const finalists = [{ params: {} as Variant, us: Number.POSITIVE_INFINITY }, ...variants.slice(0, FINALISTS)];
  const times = finalists.map((): number[] => []);
  for (let round = 0; round < ROUNDS; round++)
    for (const [i, { params }] of finalists.entries()) {
      onVariant(space.length);
      times[i]!.push((await timeProduct(rt, operands, m, { passes: PASSES, params: plain(params) })).us);
    }
  // Which of three is the least is decided by the same rule for all, the choice included.
  const again = times.map((list) => Math.min(...list));
  const choiceUs = again[0]!;
  for (const [i, variant] of variants.slice(0, FINALISTS).entries()) variant.us = again[i + 1]!;
  variants.sort((a, b) => a.us - b.us);
  // The choice is a setting too: where nothing is faster, it is the best.
  const first = variants[0];
  const best = first && first.us < choiceUs ? first : { params: {} as Variant, us: choiceUs };
  const ratio = choiceUs / best.us;
  return {
    type,
    k,
    n,
    m,
    choiceUs,
    bestUs: best.us,
    best: best.params,
    ratio,
    within: ratio <= TOLERANCE,
    variants,
    refused,
  };
}
