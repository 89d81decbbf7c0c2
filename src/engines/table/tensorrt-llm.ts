import type { Engine } from '../engine.js';
import { FP8, MXFP8, NVFP4 } from './forms.js';

/** TensorRT-LLM reads the format that ModelOpt exports. */
export const tensorrtLlm: Engine = {
  name: 'tensorrt-llm',
  title: 'TensorRT-LLM',
  versions: '1.2',
  evidence: 'untried',
  forms: [
    {
      ...NVFP4,
      says: 'NVFP4 weights and activations',
      target: 'modelopt',
      calibrated: { target: 'modelopt', only: true },
    },
    { ...FP8, target: 'modelopt' },
    { ...MXFP8, target: 'modelopt' },
  ],
  positiveScales: true,
  serve: (dir) => `trtllm-serve ${dir}`,
};
