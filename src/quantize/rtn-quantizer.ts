import type { NativeRuntime } from '../../native/binding.js';
import type { Quantizer } from './quantizer.js';
import { quantizeRtn } from './rtn.js';

/** Round to nearest: no calibration, one pass over the weights. */
export function rtnQuantizer(rt: NativeRuntime): Quantizer {
  return {
    method: 'rtn',
    statistics: false,
    original: false,
    options: {},
    feed: () => ({ solve: (name, weight, scheme) => quantizeRtn(rt, weight, scheme, name), dispose() {} }),
  };
}
