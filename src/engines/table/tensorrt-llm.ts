import type { Engine } from '../engine.js';

/** TensorRT-LLM reads what ModelOpt writes, which lpq does not write. */
export const tensorrtLlm: Engine = {
  name: 'tensorrt-llm',
  title: 'TensorRT-LLM',
  versions: 'none',
  evidence: 'untried',
  forms: [],
  positiveScales: true,
  serve: (dir) => `trtllm-serve ${dir}`,
};
