import type { Architecture } from '../architecture.js';
import { llama } from './llama.js';

/** Gemma and CodeGemma (arXiv:2403.08295): Llama with norms that multiply by 1 + weight, and embeddings times sqrt(hidden). */
export const gemma: Architecture = {
  ...llama,
  modelType: 'gemma',
  className: 'GemmaForCausalLM',
  only: { use_bidirectional_attention: false },
  defaults: { num_key_value_heads: 16 },
  tied: { keys: ['tie_word_embeddings'], otherwise: true },
  norm: { ...llama.norm, offset: 1 },
  embedding: { scale: 'root-hidden' },
  attention: { ...llama.attention, headDim: 256 },
  mlp: { ...llama.mlp, bias: false, activation: { keys: ['hidden_act'], otherwise: 'gelu_pytorch_tanh' } },
};
