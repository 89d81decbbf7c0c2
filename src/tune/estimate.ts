import type { ModelPlan } from '../model/plan.js';
import type { ModelGraph } from '../model/program.js';
import { linearsOf } from '../quantize/linears.js';
import type { ExtraNeeds } from '../quantize/method.js';
import type { OptionValues } from '../quantize/option.js';
import type { ModulePlan } from '../quantize/plan.js';
import { withoutGradient } from './block.js';
import { tuningBytes } from './memory.js';
import { LOOKS, tuneOptions } from './options.js';
import { blockOperations, scaleMemory, scaleOperations } from './scales/estimate.js';
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
    // Forward, and the gradients of inputs and of weights; looks take an eighth of the data forward, moments half of it.
    const looks = (Math.min(tune.steps, LOOKS) + 1) * Math.max(batch, tokens / 8);
    const passes = 3 * tune.steps * batch + looks + tokens / 2;
    for (const block of trained) {
      const linears = linearsOf(block).filter(({ name }) => modules.has(name));
      const feeds = block.stages.flatMap((stage) => stage.feeds).map((feed) => feed.linears[0]?.k ?? 0);
      const sum = (values: readonly number[]) => values.reduce((a, b) => a + b, 0);
      // A step multiplies gradients and errors of codes by a matrix [K,K] each.
      const steps = (tune.steps + Math.min(tune.steps, tune.refits)) * sum(linears.map(({ n, k }) => 4 * n * k * k));
      const moments = sum(feeds.map((k) => tokens * k * k + 3 * k ** 3));
      operations += passes * blockOperations(block, plans[block.index]) + steps + moments;
      beside = Math.max(beside, tuningBytes(block, linears, batch));
    }
  }
  return {
    operations: operations + (scales ? scaleOperations(graph, plan, scales.steps) : 0),
    beside,
    after: scales ? scaleMemory(graph, plan, modules) : 0,
  };
}
