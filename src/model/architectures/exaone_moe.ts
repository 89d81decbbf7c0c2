import type { Architecture } from '../architecture.js';
import { OWN_MODEL } from '../tables/prediction.js';
import { deepseekExperts } from './deepseek_v3.js';
import { exaone4 } from './exaone4.js';
import { llama } from './llama.js';

/** K-EXAONE: EXAONE 4.0's windows and positions with norms before the branches, and DeepSeek-V3's experts. */
export const exaoneMoe: Architecture = {
  ...exaone4,
  modelType: 'exaone_moe',
  className: 'ExaoneMoeForCausalLM',
  attention: {
    ...exaone4.attention,
    names: { ...llama.attention.names, qNorm: 'self_attn.q_norm', kNorm: 'self_attn.k_norm' },
  },
  mlp: { ...llama.mlp, bias: false },
  prediction: { ...OWN_MODEL, count: ['num_nextn_predict_layers'], like: 'first', dense: true },
  experts: {
    ...deepseekExperts,
    names: { ...deepseekExperts.names, choiceBias: 'mlp.e_score_correction_bias' },
    count: ['num_experts', 'num_local_experts'],
    scoring: 'sigmoid',
    shared: {
      ...deepseekExperts.shared,
      intermediate: { times: { keys: ['num_shared_experts'], otherwise: 1 } },
    },
    blockTypes: 'mlp_layer_types',
    firstDense: { keys: ['first_k_dense_replace'], otherwise: 1 },
  },
};
