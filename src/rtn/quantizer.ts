import type { Quantizer } from '../quantize/quantizer.js';
import { nearest } from '../quantize/round.js';

/** Round to nearest: no calibration, one pass over the weights. */
export function rtnQuantizer(): Quantizer {
  return { method: 'rtn', statistics: false, original: false, options: {}, feed: nearest };
}
