import type { NativeRuntime } from '../../native/binding.js';
import { LpqError } from '../core/error.js';
import type { Quantizer } from './quantizer.js';
export function rtnQuantizer(_rt: NativeRuntime): Quantizer {
  return { method: 'rtn', statistics: false, original: false, options: {}, feed() { throw new LpqError('LPQ_INTERNAL', 'rtn'); } };
}
