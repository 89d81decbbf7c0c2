import type { MethodOption, OptionValues } from '../quantize/option.js';

/** How codes are trained; what a checkpoint records of it beside the options of the command. */
export interface TuneOptions {
  readonly steps: number;
  /** How far shifts can go in all steps together, twice, in distances of grid points; scales likewise, in shares. */
  readonly rate: number;
  readonly scaleRate: number;
  /** Where training begins. */
  readonly start: Start | 'best';
  /** With the best start: the share of `steps` that each start is tried for. */
  readonly trial: number;
  readonly seed: number;
}

/** The least shifts that round to the codes of the method before, or none: the nearest codes by its scales. */
export type Start = 'least' | 'nearest';
export const STARTS: readonly Start[] = ['least', 'nearest'];

export const DEFAULT_STEPS = 200;
/** How often the batches held out are asked. */
export const LOOKS = 20;

/** What no option of the command sets. */
export const TUNE_DEFAULTS: Omit<TuneOptions, 'steps' | 'seed'> = {
  rate: 1,
  scaleRate: 1,
  start: 'least',
  trial: 0.15,
};

/** Of methods whose codes can be trained. */
export const TUNE_OPTION: MethodOption = {
  field: 'tune',
  flags: '--tune [steps]',
  help: `train the codes and scales of each block on its output for so many steps, on the CPU (default: 0; ${DEFAULT_STEPS} if you give no number)`,
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
