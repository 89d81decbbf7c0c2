import type { Architecture } from '../architecture.js';
import type { ExpertsTable } from '../tables/experts.js';
import { FOLLOWING_BLOCKS } from '../tables/prediction.js';
import { deepseekExperts, deepseekV3 } from './deepseek_v3.js';
import { llama } from './llama.js';

/** DeepSeek-V3's mixture with one shared expert and one dense block first, unless the config says otherwise. */
const experts = {
  ...deepseekExperts,
  count: ['n_routed_experts', 'num_local_experts'],
  scoring: 'sigmoid',
  scale: { keys: ['routed_scaling_factor'], otherwise: 1 },
  shared: {
    ...deepseekExperts.shared,
    intermediate: { times: { keys: ['n_shared_experts'], otherwise: 1 } },
  },
  firstDense: { keys: ['first_k_dense_replace'], otherwise: 1 },
} satisfies ExpertsTable;

const norm: Architecture['norm'] = { kind: 'rms', epsilon: { keys: ['rms_norm_eps'], otherwise: 1e-5 } };

/** GLM-4.5, 4.6 and 4.7 (arXiv:2508.06471): half of each head rotated, norms on the heads of q and k in the largest, DeepSeek-V3's experts. */
export const glm4Moe: Architecture = {
  ...llama,
  modelType: 'glm4_moe',
  className: 'Glm4MoeForCausalLM',
  prediction: FOLLOWING_BLOCKS,
  defaults: { num_key_value_heads: 8 },
  norm,
  attention: {
    ...llama.attention,
    names: { ...llama.attention.names, qNorm: 'self_attn.q_norm', kNorm: 'self_attn.k_norm' },
    headNorm: { enabled: { keys: ['use_qk_norm'], otherwise: false } },
    bias: { ...llama.attention.bias, o: false },
    rope: { style: 'half', theta: 10_000, share: 0.5, partial: true },
  },
  mlp: { ...llama.mlp, bias: false },
  experts,
};

/** GLM-4.7-Flash: DeepSeek-V3's latent attention with the same experts. */
export const glm4MoeLite: Architecture = {
  ...deepseekV3,
  modelType: 'glm4_moe_lite',
  className: 'Glm4MoeLiteForCausalLM',
  defaults: { q_lora_rank: 768 },
  norm,
  experts: {
    ...experts,
    scale: { keys: ['routed_scaling_factor'], otherwise: 1.8 },
    blockTypes: 'mlp_layer_types',
    firstDense: 1,
  },
};
