import type { Quantizer } from './quantizer.js';
import { quantizeRtn } from './rtn.js';

/** Round to nearest: no calibration, one pass over the weights. */
export function rtnQuantizer(): Quantizer {
  return {
    method: 'rtn',
    statistics: false,
    original: false,
    options: {},
    feed: (rt) => ({ solve: (name, weight, scheme) => quantizeRtn(rt, weight, scheme, name), dispose() {} }),
  };
}
