import type { NativeRuntime } from '../../../native/binding.js';
import type { ModelPlan } from '../../model/plan.js';
import type { ModelGraph } from '../../model/program.js';
import type { StepTimes, WholeTrial } from '../../quantize/method.js';
import type { OptionValues } from '../../quantize/option.js';
import { looksOf, scaleOperations } from './estimate.js';
import { HELD_MOST, STEP_TOKENS, scaleOptions } from './options.js';
import { sizesOf } from './sizes.js';
import { batchesAtOnce } from './teacher.js';

/** Steps of a trial: as many as there are for one look at the batches held out. */
const STEPS = 10;

/** How a few steps tell the time of all; undefined: there are none. */
export function scaleTrial(settings: OptionValues): WholeTrial | undefined {
  const steps = scaleOptions(settings)?.steps;
  if (steps === undefined) return undefined;
  return {
    settings: { ...settings, tuneScales: Math.min(steps, STEPS) },
    size: (graph: ModelGraph, plan: ModelPlan, rt: NativeRuntime) =>
      scaleOperations(graph, plan, steps, sizesOf(rt).kept),
    seconds: (times, graph, plan, rt) => scaleSeconds(times, steps, batchesAtOnce({ rt, graph, plan }, STEP_TOKENS)),
  };
}

/**
 * Of all `steps`. The first step of a trial has taken its batches through the unquantized model, whose weights are read once for `atOnce`
 * of them; what follows the last step is a look at HELD_MOST batches at most, which that many steps have in common.
 */
export function scaleSeconds({ before, each, after }: StepTimes, steps: number, atOnce: number): number {
  const inside = each.reduce((sum, one) => sum + one, 0);
  if (steps <= each.length) return before + inside + after;
  const later = each.slice(1).toSorted((a, b) => a - b);
  const step = later[later.length >> 1] ?? each[0] ?? 0;
  const taught = Math.max(0, (each[0] ?? 0) - step);
  // A batch of the unquantized model takes no longer than one of a look.
  const batch = Math.min(taught / each.length, after / HELD_MOST);
  const read = taught - batch * each.length;
  return before + steps * (step + batch) + Math.ceil(steps / atOnce) * read + looksOf(steps) * after;
}
