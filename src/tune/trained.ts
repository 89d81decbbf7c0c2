import type { OptionValues } from '../quantize/option.js';
import type { Quantizer } from '../quantize/quantizer.js';
import { tuneOptions } from './options.js';
import { tuned } from './quantizer.js';
import { scaleOptions } from './scales/options.js';
import { withTrainedScales } from './scales/quantizer.js';

/** A method with the training that settings ask for. */
export function trained(base: Quantizer, settings: OptionValues): Quantizer {
  const [tune, scales] = [tuneOptions(settings), scaleOptions(settings)];
  const blocks = tune ? tuned(base, tune) : base;
  return scales ? withTrainedScales(blocks, scales) : blocks;
}
