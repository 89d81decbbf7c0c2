import type { Architecture } from '../architecture.js';
import { deepseekExperts, deepseekV3 } from './deepseek_v3.js';

const { choiceBias: _, ...names } = deepseekExperts.names;

/**
 * DeepSeek-V2, V2-Lite and V2.5 (arXiv:2405.04434): V3's blocks with softmax shares and no bias; the best experts of all,
 * or of the groups with the best expert. Shares are not divided by their sum: norm_topk_prob is false in every published
 * config, and transformers does not look at it.
 */
export const deepseekV2: Architecture = {
  ...deepseekV3,
  modelType: 'deepseek_v2',
  className: 'DeepseekV2ForCausalLM',
  mla: { ...(deepseekV3.mla as NonNullable<Architecture['mla']>), interleaved: true },
  experts: {
    ...deepseekExperts,
    names,
    scoring: { keys: ['scoring_func'], otherwise: 'softmax' },
    normalize: false,
    scale: { keys: ['routed_scaling_factor'], otherwise: 1 },
    groups: {
      when: { key: 'topk_method', on: 'group_limited_greedy', off: 'greedy' },
      count: 'n_group',
      top: 'topk_group',
      score: 'best',
    },
  },
};
