import type { Architecture } from '../architecture.js';
import type { ExpertsTable } from '../tables/experts.js';
import { FOLLOWING_BLOCKS } from '../tables/prediction.js';
import { llama } from './llama.js';

/** Sigmoid shares, experts chosen in groups with a bias; shared experts beside them. */
export const deepseekExperts = {
  names: {
    router: 'mlp.gate',
    gate: 'mlp.experts.{expert}.gate_proj',
    up: 'mlp.experts.{expert}.up_proj',
    down: 'mlp.experts.{expert}.down_proj',
    choiceBias: 'mlp.gate.e_score_correction_bias',
  },
  count: ['n_routed_experts', 'num_local_experts'],
  perToken: ['num_experts_per_tok'],
  intermediate: ['moe_intermediate_size'],
  scoring: { keys: ['scoring_func'], otherwise: 'sigmoid' },
  normalize: { keys: ['norm_topk_prob'], otherwise: true },
  scale: { keys: ['routed_scaling_factor'], otherwise: 2.5 },
  groups: { count: 'n_group', top: 'topk_group', score: 'two best' },
  shared: {
    names: {
      gate: 'mlp.shared_experts.gate_proj',
      up: 'mlp.shared_experts.up_proj',
      down: 'mlp.shared_experts.down_proj',
    },
    intermediate: { times: { keys: ['n_shared_experts'], otherwise: 0 } },
  },
  every: 1,
  denseBlocks: 'mlp_only_layers',
  firstDense: { keys: ['first_k_dense_replace'], otherwise: 0 },
  frequency: 'moe_layer_freq',
} satisfies ExpertsTable;

/**
 * DeepSeek-V3, V3.1 and R1 (arXiv:2412.19437): latent attention; sigmoid shares, experts chosen in groups with a bias that
 * balances their load; shared experts; dense blocks first; blocks of multi-token prediction behind the last.
 */
export const deepseekV3: Architecture = {
  ...llama,
  modelType: 'deepseek_v3',
  className: 'DeepseekV3ForCausalLM',
  prediction: FOLLOWING_BLOCKS,
  mla: {
    names: {
      norm: 'input_layernorm',
      q: 'self_attn.q_proj',
      qA: 'self_attn.q_a_proj',
      qNorm: 'self_attn.q_a_layernorm',
      qB: 'self_attn.q_b_proj',
      kvA: 'self_attn.kv_a_proj_with_mqa',
      kvNorm: 'self_attn.kv_a_layernorm',
      kvB: 'self_attn.kv_b_proj',
      o: 'self_attn.o_proj',
    },
    bias: { keys: ['attention_bias'], otherwise: false },
    theta: 10_000,
    epsilon: 1e-6,
    interleaved: { keys: ['rope_interleave'], otherwise: true },
    scaleScores: true,
  },
  mlp: { ...llama.mlp, bias: false },
  experts: deepseekExperts,
};

/** Kimi K2: DeepSeek-V3 with more experts and fewer heads, under a name of its own and DeepSeek's class. */
export const kimiK2: Architecture = { ...deepseekV3, modelType: 'kimi_k2' };
