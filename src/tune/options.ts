import type { MethodOption, OptionValues } from '../quantize/option.js';

/** How codes are trained; what a checkpoint records of it beside the options of the command. */
export interface TuneOptions {
  readonly steps: number;
  /** How far shifts can go in all steps together, twice, in distances of grid points; scales likewise, in shares. */
  readonly rate: number;
  readonly scaleRate: number;
  readonly seed: number;
}

export const DEFAULT_STEPS = 200;

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
  return steps > 0 ? { steps, rate: 1, scaleRate: 1, seed: Number(seed ?? 0) } : undefined;
}
