import type { Engine } from '../engine.js';
import { AWQ4, FP8, INT4, INT8, MXFP8, NVFP4 } from './forms.js';

/** vLLM as it is, on a CUDA device of compute capability 8.0 or later. */
export const vllm: Engine = {
  name: 'vllm',
  title: 'vLLM',
  versions: '0.32',
  evidence: 'its rules were read',
  forms: [INT4, INT8, AWQ4, FP8, MXFP8, NVFP4],
  positiveScales: true,
  note: 'The CPU build of vLLM runs only the 4-bit forms of dense models; version 0.32 loaded them and computed with them.',
  serve: (dir) => `vllm serve ${dir}`,
};
