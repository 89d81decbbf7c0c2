import type { Architecture } from '../architecture.js';
import { INDEXERS_STAY, type IndexerTable } from '../plan-indexer.js';
import type { MlaTable } from '../tables/mla.js';
import { deepseekExperts, deepseekV3 } from './deepseek_v3.js';

const indexer: IndexerTable = {
  names: {
    q: 'self_attn.indexer.wq_b',
    k: 'self_attn.indexer.wk',
    weights: 'self_attn.indexer.weights_proj',
    norm: 'self_attn.indexer.k_norm',
  },
  heads: ['index_n_heads'],
  dim: ['index_head_dim'],
  top: ['index_topk'],
  interleaved: false,
  carried: { indexers: INDEXERS_STAY },
};

/** DeepSeek-V3.2 (arXiv:2512.02556): V3 whose tokens see the keys that an indexer chooses. */
export const deepseekV32: Architecture = {
  ...deepseekV3,
  modelType: 'deepseek_v32',
  className: 'DeepseekV32ForCausalLM',
  defaults: { q_lora_rank: 1536, n_group: 8, topk_group: 4, index_n_heads: 64, index_head_dim: 128, index_topk: 2048 },
  mla: { ...(deepseekV3.mla as MlaTable), interleaved: true, indexer },
  experts: {
    ...deepseekExperts,
    shared: { ...deepseekExperts.shared, intermediate: { times: { keys: ['n_shared_experts'], otherwise: 1 } } },
    blockTypes: 'mlp_layer_types',
    firstDense: { keys: ['first_k_dense_replace'], otherwise: 3 },
  },
};

/** GLM-5 and later: the same, with turned pairs of the indexer side by side; blocks may see what the one before chose (arXiv:2603.12201). */
export const glmMoeDsa: Architecture = {
  ...deepseekV32,
  modelType: 'glm_moe_dsa',
  className: 'GlmMoeDsaForCausalLM',
  defaults: { q_lora_rank: 2048, n_group: 1, topk_group: 1, index_n_heads: 32, index_head_dim: 128, index_topk: 2048 },
  norm: { kind: 'rms', epsilon: { keys: ['rms_norm_eps'], otherwise: 1e-5 } },
  mla: {
    ...(deepseekV32.mla as MlaTable),
    indexer: {
      ...indexer,
      interleaved: { keys: ['indexer_rope_interleave'], otherwise: true },
      shared: {
        list: 'indexer_types',
        letters: 'index_topk_pattern',
        every: { keys: ['index_topk_freq'], otherwise: 1 },
        offset: { keys: ['index_skip_topk_offset'], otherwise: 2 },
      },
    },
  },
};
