import type { Method } from '../quantize/method.js';
import { training } from '../tune/method.js';
import { type ColumnOrder, GPTQ_DEFAULTS, SPARSE_ALPHA } from './options.js';

/** The settings of the command line that are the solver's. */
interface Given {
  readonly order: ColumnOrder;
  readonly gptaq: number;
  readonly damp: number;
  readonly scaleSign: 'either' | 'positive';
  readonly moeCoverage: number;
}

/** GPTQ with clip search, GPTAQ's correction, scale refit and coordinate descent (docs/methods.md). */
export const gptq: Method = {
  name: 'gptq',
  needs: 'statistics',
  ...training,
  options: [
    {
      field: 'order',
      flags: '--order <kind>',
      help: 'static (act-order, static groups), group or none (default: static)',
      takes: ['static', 'group', 'none'],
      otherwise: GPTQ_DEFAULTS.order,
    },
    {
      field: 'gptaq',
      flags: '--gptaq <share>',
      help: "share of GPTAQ's correction; 0 turns it off (default: 0.25, 0.5 with 2:4)",
      takes: { least: 0, most: 1 },
      otherwise: ({ sparsity }) => (sparsity === '2:4' ? SPARSE_ALPHA : GPTQ_DEFAULTS.alpha),
      withoutActivations: 0,
    },
    {
      field: 'damp',
      flags: '--damp <fraction>',
      help: 'damping, as a fraction of mean(diag H) (default: 0.01)',
      takes: { above: 0, most: 1 },
      otherwise: GPTQ_DEFAULTS.damp,
    },
    {
      field: 'scaleSign',
      flags: '--scale-sign <which>',
      help: 'sign of the scales of symmetric integers: either, or positive for engines that do not read negative ones (default: either)',
      takes: ['either', 'positive'],
      otherwise: 'either',
    },
    {
      field: 'moeCoverage',
      flags: '--moe-coverage <share>',
      help: 'least share of the calibration tokens that every expert sees (default: 0, only those routed to it)',
      takes: { least: 0, most: 1 },
      otherwise: 0,
      withoutActivations: 0,
    },
    {
      field: 'products',
      flags: '--products <type>',
      help: "number format of the CPU's products during calibration: bf16, or f32, which takes twice as long (default: bf16)",
      takes: ['bf16', 'f32'],
      otherwise: 'bf16',
    },
    ...training.options,
  ],
  products: ({ products }) => products as 'bf16' | 'f32',
  async quantizer(settings) {
    const { order, damp, gptaq, scaleSign, moeCoverage } = settings as unknown as Given;
    const { gptqQuantizer } = await import('./quantizer.js');
    const solver = gptqQuantizer({
      ...GPTQ_DEFAULTS,
      order,
      damp,
      alpha: gptaq,
      bothSigns: scaleSign === 'either',
      coverage: moeCoverage,
    });
    return (await import('../tune/trained.js')).trained(solver, settings);
  },
};
