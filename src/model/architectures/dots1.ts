import type { Architecture } from '../architecture.js';
import { deepseekExperts } from './deepseek_v3.js';
import { llama } from './llama.js';

/** dots.llm1 (arXiv:2506.05767): norms on the heads of q and k, and DeepSeek-V3's experts. */
export const dots1: Architecture = {
  ...llama,
  modelType: 'dots1',
  className: 'Dots1ForCausalLM',
  defaults: { num_key_value_heads: 32 },
  attention: {
    ...llama.attention,
    names: { ...llama.attention.names, qNorm: 'self_attn.q_norm', kNorm: 'self_attn.k_norm' },
    window: {
      enabled: true,
      otherwise: 4096,
      fullBlocks: { keys: ['max_window_layers'], otherwise: 62 },
      layerTypes: true,
    },
  },
  mlp: { ...llama.mlp, bias: false },
  experts: {
    ...deepseekExperts,
    scoring: 'sigmoid',
    normalize: { keys: ['norm_topk_prob'], otherwise: false },
    scale: { keys: ['routed_scaling_factor'], otherwise: 1 },
    firstDense: { keys: ['first_k_dense_replace'], otherwise: 0 },
  },
};
