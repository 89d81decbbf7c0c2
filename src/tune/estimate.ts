import type { ModelPlan } from '../model/plan.js';
import type { ModelGraph } from '../model/program.js';
import { linearsOf } from '../quantize/linears.js';
import type { ExtraNeeds } from '../quantize/method.js';
import type { OptionValues } from '../quantize/option.js';
import type { ModulePlan } from '../quantize/plan.js';
import { withoutGradient } from './block.js';
import { LOOKS, tuneOptions } from './options.js';
import { blockOperations, madeFloats, scaleMemory, scaleOperations } from './scales/estimate.js';
import { STEP_TOKENS, scaleOptions } from './scales/options.js';

/** What training takes beside what the method before it does: of blocks, and of scales when they are done. */
export function trainingNeeds(
  graph: ModelGraph,
  plan: ModelPlan,
  modules: ModulePlan,
  settings: OptionValues,
): ExtraNeeds {
  const [tune, scales] = [tuneOptions(settings), scaleOptions(settings)];
  const plans = [...plan.blocks, ...plan.predictions];
  const trained = graph.blocks.filter(
    (block) =>
      plans[block.index] &&
      withoutGradient(plans[block.index] as ModelPlan['blocks'][number]) === undefined &&
      linearsOf(block).some(({ name }) => modules.has(name)),
  );
  let [operations, beside] = [0, 0];
  if (tune) {
    const tokens = Number(settings.samples) * Number(settings.seqLen);
    const batch = Math.min(tokens, STEP_TOKENS);
    // Forward, and the gradients of inputs and of weights; looks take an eighth of the data forward.
    const passes = 3 * tune.steps * batch + (Math.min(tune.steps, LOOKS) + 1) * Math.max(batch, tokens / 8);
    for (const block of trained) {
      operations += passes * blockOperations(block, plans[block.index]);
      const weights = linearsOf(block).reduce((sum, { name, n, k }) => sum + (modules.has(name) ? n * k : 0), 0);
      beside = Math.max(beside, 4 * (6 * weights + madeFloats(block) * batch));
    }
  }
  return {
    operations: operations + (scales ? scaleOperations(graph, plan, scales.steps) : 0),
    beside,
    after: scales ? scaleMemory(graph, plan, modules) : 0,
  };
}
