import type { Architecture } from '../architecture.js';
import { llama } from './llama.js';
import { mixtralExperts } from './mixtral.js';

/** Phi-3.5-MoE (arXiv:2404.14219): Mixtral between LayerNorms, SparseMixer in the router, LongRoPE with multipliers of its own. */
export const phimoe: Architecture = {
  ...llama,
  modelType: 'phimoe',
  className: 'PhimoeForCausalLM',
  only: { num_experts_per_tok: 2 },
  defaults: { num_key_value_heads: 8, num_experts_per_tok: 2, num_local_experts: 16 },
  headBias: { keys: ['lm_head_bias'], otherwise: false },
  norm: { kind: 'layer', epsilon: { keys: ['rms_norm_eps'], otherwise: 1e-5 } },
  attention: {
    ...llama.attention,
    rope: { style: 'half', theta: 1_000_000, original: 4096, mscales: true },
    window: { enabled: true, otherwise: null, fullBlocks: 0, layerTypes: false },
  },
  experts: {
    ...mixtralExperts,
    jitter: { keys: ['router_jitter_noise'], otherwise: 0.01 },
    normalize: false,
  },
};
