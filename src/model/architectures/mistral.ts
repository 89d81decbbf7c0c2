import type { Architecture } from '../architecture.js';
import { llama } from './llama.js';

/** Mistral 7B and Nemo: Llama without biases, and with a sliding window in every block (4096 unless the config says). */
export const mistral: Architecture = {
  ...llama,
  modelType: 'mistral',
  className: 'MistralForCausalLM',
  attention: {
    ...llama.attention,
    bias: { q: false, k: false, v: false, o: false },
    window: { enabled: true, otherwise: 4096, fullBlocks: 0, layerTypes: false },
  },
  mlp: { ...llama.mlp, bias: false },
};
