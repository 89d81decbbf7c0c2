import { LpqError } from '../../core/error.js';
import type { MethodOption, OptionValues } from '../../quantize/option.js';

/** How scales are trained on the model's end; what a checkpoint records of it beside the options of the command. */
export interface ScaleOptions {
  readonly steps: number;
  /** How far a step moves the outermost points of a grid, in distances of its points; it rises over the first steps and falls to 0. */
  readonly rate: number;
  readonly warmUp: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly seed: number;
  /** How far a step moves factors of the weights of norms, likewise; undefined: norms stay. */
  readonly normRate?: number;
}

export const DEFAULT_SCALE_STEPS = 300;

/** Tokens of a step, and how many batches of so many are held out at most, to choose the step. */
export const [STEP_TOKENS, HELD_MOST] = [4096, 8];

/** What no option of the command sets. */
export const SCALE_DEFAULTS: Omit<ScaleOptions, 'steps' | 'seed'> = {
  rate: 0.032,
  warmUp: 20,
  beta1: 0.9,
  beta2: 0.99,
};

/** Of methods whose scales can be trained. */
export const SCALES_OPTION: MethodOption = {
  field: 'tuneScales',
  flags: '--tune-scales [steps]',
  help: `afterwards train the group scales on the output of the whole model for so many steps (default: 0; ${DEFAULT_SCALE_STEPS} if you give no number)`,
  takes: { least: 0, most: 100_000, integer: true },
  otherwise: 0,
  withoutActivations: 0,
  bare: DEFAULT_SCALE_STEPS,
};

/** Largest step of a factor of a norm's weight. */
const NORM_RATE = 0.002;

export const NORMS_OPTION: MethodOption = {
  field: 'tuneNorms',
  flags: '--tune-norms',
  help: 'with --tune-scales: train the weights of norms, too',
  takes: 'switch',
};

/** What the settings of a run ask for; undefined: no training. */
export function scaleOptions({ tuneScales, tuneNorms, seed }: OptionValues): ScaleOptions | undefined {
  const steps = Number(tuneScales ?? 0);
  if (steps <= 0) return undefined;
  return { ...SCALE_DEFAULTS, steps, seed: Number(seed ?? 0), ...(tuneNorms === true && { normRate: NORM_RATE }) };
}

/** Throws LPQ_USAGE for norms without the training that theirs is a part of. */
export function requireScales(settings: OptionValues): void {
  if (settings.tuneNorms !== true || scaleOptions(settings)) return;
  throw new LpqError('LPQ_USAGE', '--tune-norms has no effect without --tune-scales', {
    hint: 'Add --tune-scales, or leave it out.',
  });
}

/** Sequences for every step and those held out. */
export function furtherSequences({ tuneScales, seqLen }: OptionValues): number {
  const each = Math.max(1, Math.floor(STEP_TOKENS / Number(seqLen)));
  return each * (Number(tuneScales) + HELD_MOST);
}
