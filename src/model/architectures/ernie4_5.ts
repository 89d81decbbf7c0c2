import type { Architecture } from '../architecture.js';
import { llama } from './llama.js';

const bias = { keys: ['use_bias'], otherwise: false } as const;

/** ERNIE 4.5 0.3B: Llama with neighbours rotated and one key for all biases. */
export const ernie45: Architecture = {
  ...llama,
  modelType: 'ernie4_5',
  className: 'Ernie4_5ForCausalLM',
  defaults: { num_key_value_heads: 2 },
  tied: { keys: ['tie_word_embeddings'], otherwise: true },
  norm: { kind: 'rms', epsilon: { keys: ['rms_norm_eps'], otherwise: 1e-5 } },
  attention: {
    ...llama.attention,
    bias: { q: bias, k: bias, v: bias, o: bias },
    headDim: 128,
    rope: { style: 'interleaved', theta: 500_000 },
  },
  mlp: { ...llama.mlp, bias },
};
