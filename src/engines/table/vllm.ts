import type { Engine } from '../engine.js';
import { AWQ4, FP8, INT4, INT8 } from './forms.js';

/** vLLM as it is, on a CUDA device of compute capability 8.0 or later. */
export const vllm: Engine = {
  name: 'vllm',
  title: 'vLLM',
  versions: '0.32',
  evidence: 'its rules were read',
  forms: [INT4, INT8, AWQ4, FP8],
  positiveScales: true,
  note: 'Its CPU build runs the 4-bit forms of dense models only; they were loaded and computed with in 0.32.',
  serve: (dir) => `vllm serve ${dir}`,
};
