import type { Engine } from '../engine.js';
import { MARLIN_GROUPS } from './forms.js';

/** vLLM with lpq's package beside it, which registers the method lpq and multiplies packed weights as they lie. */
export const vllmLpq: Engine = {
  name: 'vllm+lpq',
  title: 'vLLM with lpq_kernels',
  versions: '0.32, its build for the CPU',
  evidence: 'its loader ran',
  forms: [
    {
      says: 'every type of 1 to 8 bits',
      options: '--bits 4',
      takes: ({ sparsity, scaleDtype }) => sparsity === undefined && !scaleDtype.startsWith('f8'),
      groups: MARLIN_GROUPS,
      target: 'sm90',
      scales: 'f16',
      experts: (stored) =>
        stored === 'fused' ? 'vLLM expects the experts of this architecture in one tensor per block' : undefined,
    },
  ],
  positiveScales: false,
  note: 'Install lpq_kernels beside vLLM (docs/python.md).',
  serve: (dir) => `vllm serve ${dir}`,
};
