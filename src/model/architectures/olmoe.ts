import type { Architecture } from '../architecture.js';
import { llama } from './llama.js';
import { qwenExperts } from './qwen3-moe.js';

/** OLMoE (arXiv:2409.02060): Llama with norms on q and k over all heads, and experts in every block. */
export const olmoe: Architecture = {
  ...llama,
  modelType: 'olmoe',
  className: 'OlmoeForCausalLM',
  only: { clip_qkv: null },
  norm: { kind: 'rms', epsilon: { keys: ['rms_norm_eps'], otherwise: 1e-5 } },
  attention: {
    ...llama.attention,
    names: { ...llama.attention.names, qNorm: 'self_attn.q_norm', kNorm: 'self_attn.k_norm' },
    headNorm: { over: 'all' },
  },
  experts: {
    ...qwenExperts,
    intermediate: ['intermediate_size'],
    every: 1,
  },
};
