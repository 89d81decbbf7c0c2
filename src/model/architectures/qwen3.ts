import type { Architecture } from '../architecture.js';
import { llama } from './llama.js';
import { qwen2 } from './qwen2.js';

/** Qwen3: Qwen2 without its fixed biases, with heads of 128 dimensions and RMS norms on the heads of q and k. */
export const qwen3: Architecture = {
  ...qwen2,
  modelType: 'qwen3',
  className: 'Qwen3ForCausalLM',
  attention: {
    ...qwen2.attention,
    names: { ...qwen2.attention.names, qNorm: 'self_attn.q_norm', kNorm: 'self_attn.k_norm' },
    bias: llama.attention.bias,
    headDim: 128,
  },
};
