import type { Architecture } from '../architecture.js';
import { llama } from './llama.js';

/** Granite 3: Llama with four multipliers (muP, arXiv:2203.03466). */
export const granite: Architecture = {
  ...llama,
  modelType: 'granite',
  className: 'GraniteForCausalLM',
  embedding: { scale: { keys: ['embedding_multiplier'], otherwise: 1 } },
  residual: { multiplier: { keys: ['residual_multiplier'], otherwise: 1 } },
  logits: { divide: { keys: ['logits_scaling'], otherwise: 1 } },
  attention: { ...llama.attention, scale: { factor: { keys: ['attention_multiplier'], otherwise: 1 } } },
};
