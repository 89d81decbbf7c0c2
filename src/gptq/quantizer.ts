import { LpqError } from '../core/error.js';
import type { Quantizer } from '../quantize/quantizer.js';
import type { GptqOptions } from './options.js';
import { FeedSolver } from './solver.js';

/** GPTQ (Frantar et al. 2023) with clip search, GPTAQ's correction, scale refit and coordinate descent. */
export function gptqQuantizer(options: GptqOptions): Quantizer {
  return {
    method: 'gptq',
    statistics: true,
    original: options.alpha > 0,
    coverage: options.coverage,
    options: { ...options },
    feed(rt, statistics, rows) {
      if (!statistics) throw new LpqError('LPQ_INTERNAL', 'GPTQ was called without calibration statistics');
      return new FeedSolver(rt, statistics, options, rows);
    },
  };
}
