import type { Architecture } from '../architecture.js';
import { llama } from './llama.js';
import { mixtralExperts } from './mixtral.js';

/** MiniMax-M2: norms on q and k over all heads, part of each head rotated, sigmoid shares with a bias for the choice. */
export const minimaxM2: Architecture = {
  ...llama,
  modelType: 'minimax_m2',
  className: 'MiniMaxM2ForCausalLM',
  only: {
    qk_norm_type: 'per_layer',
    use_qk_norm: true,
    scoring_func: 'sigmoid',
    use_routing_bias: true,
    shared_intermediate_size: 0,
  },
  defaults: { num_key_value_heads: 8 },
  attention: {
    ...llama.attention,
    names: { ...llama.attention.names, qNorm: 'self_attn.q_norm', kNorm: 'self_attn.k_norm' },
    headNorm: { over: 'all' },
    bias: { q: false, k: false, v: false, o: false },
    headDim: 128,
    rope: { style: 'half', theta: 5_000_000, partial: true, dimensions: 'rotary_dim' },
  },
  experts: {
    ...mixtralExperts,
    names: { ...mixtralExperts.names, choiceBias: 'block_sparse_moe.e_score_correction_bias' },
    scoring: 'sigmoid',
    normalize: true,
  },
};
