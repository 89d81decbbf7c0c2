import { type Config, keyOf, type Setting, settingNumber } from '../config.js';

/** A causal convolution of `channels` over `taps` tokens: weight [channels, 1, taps], bias [channels]. */
export interface ShortConvPlan {
  readonly weight: string;
  readonly bias: string | undefined;
  readonly channels: number;
  readonly taps: number;
}

/** Throws LPQ_CONFIG. */
export function shortConvPlan(
  config: Config,
  setting: Setting<number>,
  name: string,
  channels: number,
  bias: boolean,
): ShortConvPlan {
  const taps = settingNumber(config, setting);
  if (!Number.isSafeInteger(taps) || taps < 2 || taps > 64)
    throw config.error(keyOf(setting), 'is out of range', taps, 'an integer from 2 to 64');
  return { weight: `${name}.weight`, bias: bias ? `${name}.bias` : undefined, channels, taps };
}
