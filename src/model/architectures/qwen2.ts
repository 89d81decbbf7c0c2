import type { Architecture } from '../architecture.js';
import { llama } from './llama.js';

/** Qwen2 and Qwen2.5: Llama with biases on q, k and v, and, if switched on, windows from block max_window_layers on. */
export const qwen2: Architecture = {
  ...llama,
  modelType: 'qwen2',
  className: 'Qwen2ForCausalLM',
  attention: {
    ...llama.attention,
    bias: { q: true, k: true, v: true, o: false },
    window: {
      enabled: { keys: ['use_sliding_window'], otherwise: false },
      otherwise: 4096,
      fullBlocks: { keys: ['max_window_layers'], otherwise: 28 },
      layerTypes: true,
    },
  },
  mlp: { ...llama.mlp, bias: false },
};

/** The language model of Qwen2.5-VL: other defaults, and an older name of the plain rotation. */
export const qwen25Vl: Architecture = {
  ...qwen2,
  norm: { kind: 'rms', epsilon: { keys: ['rms_norm_eps'], otherwise: 1e-5 } },
  attention: {
    ...qwen2.attention,
    rope: { style: 'half', theta: 1_000_000, kinds: { mrope: 'default' } },
    window: { ...qwen2.attention.window, fullBlocks: { keys: ['max_window_layers'], otherwise: 80 } },
  },
};
