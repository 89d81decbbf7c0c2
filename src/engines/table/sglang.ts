import type { Engine } from '../engine.js';
import { AWQ4, FP8, INT4, INT8 } from './forms.js';

/** SGLang has vLLM's loaders of these formats, in its own tree. */
export const sglang: Engine = {
  name: 'sglang',
  title: 'SGLang',
  versions: '0.5',
  evidence: 'untried',
  forms: [INT4, INT8, AWQ4, FP8],
  positiveScales: true,
  serve: (dir) => `python -m sglang.launch_server --model-path ${dir}`,
};
