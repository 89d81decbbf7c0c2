import type { Architecture } from '../architecture.js';
import { PROJECTIONS_STAY } from '../tables/prediction.js';
import { deepseekExperts } from './deepseek_v3.js';
import { ernie45 } from './ernie4_5.js';

/** ERNIE 4.5 A3B and A47B: ERNIE 4.5 with softmax shares, a bias for the choice, and blocks with experts between two indices. */
export const ernie45Moe: Architecture = {
  ...ernie45,
  modelType: 'ernie4_5_moe',
  className: 'Ernie4_5_MoeForCausalLM',
  only: { use_bias: false },
  defaults: { num_key_value_heads: 4 },
  attention: { ...ernie45.attention, headDim: 'hidden/heads' },
  prediction: {
    block: 'model.mtp_block.{layer}.',
    numbered: 'anew',
    root: 'model.mtp_',
    names: {
      embeddingNorm: 'model.mtp_emb_norm.{layer}',
      hiddenNorm: 'model.mtp_hidden_norm.{layer}',
      projection: 'model.mtp_linear_proj.{layer}',
    },
    count: ['num_nextn_predict_layers'],
    dense: true,
    vllmBlock: 'model.layers.{layer}.',
    normed: false,
    aliases: {},
    carried: { 'projections of multi-token prediction': PROJECTIONS_STAY },
  },
  experts: {
    names: { ...deepseekExperts.names, choiceBias: 'mlp.moe_statics.e_score_correction_bias' },
    count: ['moe_num_experts', 'num_experts'],
    perToken: ['moe_k', 'num_experts_per_tok'],
    intermediate: ['moe_intermediate_size'],
    choiceBiasRow: true,
    normalize: true,
    shared: {
      names: deepseekExperts.shared.names,
      intermediate: { times: { keys: ['moe_num_shared_experts'], otherwise: 2 } },
    },
    every: { keys: ['moe_layer_interval'], otherwise: 1 },
    denseBlocks: 'mlp_only_layers',
    firstDense: { keys: ['moe_layer_start_index'], otherwise: 1 },
    lastSparse: { keys: ['moe_layer_end_index'], otherwise: -1 },
  },
};
