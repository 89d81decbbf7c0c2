import type { Method } from '../quantize/method.js';

/** Round to nearest: no calibration, one pass over the weights. */
export const rtn: Method = {
  name: 'rtn',
  needs: 'weights',
  options: [],
  quantizer: async () => (await import('./quantizer.js')).rtnQuantizer(),
};
