import type { Method } from '../quantize/method.js';
import { training, trainsBlocks, trainsScales } from '../tune/method.js';

/** Round to nearest: no calibration, one pass over the weights; with training, what that begins with. */
export const rtn: Method = {
  name: 'rtn',
  needs: (settings) => (trainsBlocks(settings) || trainsScales(settings) ? 'statistics' : 'weights'),
  ...training,
  products: (settings) => (trainsBlocks(settings) || trainsScales(settings) ? 'bf16' : 'f32'),
  async quantizer(settings) {
    const solver = (await import('./quantizer.js')).rtnQuantizer();
    // Blocks are trained on what the unquantized model computes.
    const seeing = trainsBlocks(settings) ? { ...solver, statistics: true, original: true } : solver;
    return (await import('../tune/trained.js')).trained(seeing, settings);
  },
};
