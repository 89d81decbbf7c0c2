import type { MethodOption, OptionValues } from '../quantize/option.js';

/** How codes are trained; what a checkpoint records of it beside the options of the command. */
export interface TuneOptions {
  readonly steps: number;
  /** Half of how far a target can go in all steps together, in grid points. */
  readonly rate: number;
  /** How often e-fold a target comes back to its weight in all steps together. */
  readonly leak: number;
  /** Damping of second moments, as a fraction of mean(diag H). */
  readonly damp: number;
  /** How often scales are refit. */
  readonly refits: number;
  /** Whether zero points and scales of 8 bits are refit, too: no gain where it was measured (bench/results, cpu-tune-grids). */
  readonly grids: boolean;
  readonly seed: number;
}

export const DEFAULT_STEPS = 200;
/** How often the batches held out are asked. */
export const LOOKS = 10;

/** What no option of the command sets. */
export const TUNE_DEFAULTS: Omit<TuneOptions, 'steps' | 'seed'> = {
  rate: 3,
  leak: 1,
  damp: 0.05,
  refits: 10,
  grids: false,
};

/** Of methods whose codes can be trained. */
export const TUNE_OPTION: MethodOption = {
  field: 'tune',
  flags: '--tune [steps]',
  help: `train the codes and scales of each block on its output for so many steps (default: 0; ${DEFAULT_STEPS} if you give no number)`,
  takes: { least: 0, most: 100_000, integer: true },
  otherwise: 0,
  withoutActivations: 0,
  bare: DEFAULT_STEPS,
};

/** What the settings of a run ask for; undefined: no training. */
export function tuneOptions({ tune, seed }: OptionValues): TuneOptions | undefined {
  const steps = Number(tune ?? 0);
  return steps > 0 ? { ...TUNE_DEFAULTS, steps, seed: Number(seed ?? 0) } : undefined;
}
