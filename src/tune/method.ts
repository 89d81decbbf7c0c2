import type { Method } from '../quantize/method.js';
import type { OptionValues } from '../quantize/option.js';
import { TUNE_OPTION, tuneOptions } from './options.js';
import { furtherSequences, NORMS_OPTION, requireScales, SCALES_OPTION, scaleOptions } from './scales/options.js';

export const trainsBlocks = (settings: OptionValues): boolean => tuneOptions(settings) !== undefined;
export const trainsScales = (settings: OptionValues): boolean => scaleOptions(settings) !== undefined;

/** What the descriptor of a method has whose results can be trained; trained() is its quantizer's other half. */
export const training: Pick<
  Method,
  'check' | 'wholeModel' | 'wholeTrial' | 'continues' | 'further' | 'extraNeeds' | 'checkPlan'
> & {
  readonly options: Method['options'];
} = {
  options: [TUNE_OPTION, SCALES_OPTION, NORMS_OPTION],
  check: requireScales,
  wholeModel: (settings) => (trainsScales(settings) ? '--tune-scales' : undefined),
  wholeTrial: async (settings) =>
    trainsScales(settings) ? (await import('./scales/trial.js')).scaleTrial(settings) : undefined,
  continues: (settings) => trainsBlocks(settings) || trainsScales(settings),
  further: (settings) => (trainsScales(settings) ? furtherSequences(settings) : 0),
  extraNeeds: async (graph, plan, modules, settings) =>
    trainsBlocks(settings) || trainsScales(settings)
      ? (await import('./estimate.js')).trainingNeeds(graph, plan, modules, settings)
      : { operations: 0, beside: 0, after: 0 },
  async checkPlan(source, settings, plan) {
    if (trainsScales(settings)) (await import('./scales/check.js')).requireTrainedScales(source, plan);
  },
};
