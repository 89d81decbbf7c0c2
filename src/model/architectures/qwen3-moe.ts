import type { Architecture, ExpertsTable } from '../architecture.js';
import { qwen3 } from './qwen3.js';

/** Softmax shares of experts in every block. */
export const qwenExperts = {
  names: {
    router: 'mlp.gate',
    gate: 'mlp.experts.{expert}.gate_proj',
    up: 'mlp.experts.{expert}.up_proj',
    down: 'mlp.experts.{expert}.down_proj',
  },
  count: ['num_experts', 'num_local_experts'],
  perToken: ['num_experts_per_tok'],
  intermediate: ['moe_intermediate_size'],
  normalize: { keys: ['norm_topk_prob'], otherwise: false },
  every: { keys: ['decoder_sparse_step'], otherwise: 1 },
  denseBlocks: 'mlp_only_layers',
} satisfies ExpertsTable;

/** Qwen3-MoE (30B-A3B, 235B-A22B): Qwen3 with a mixture of experts; a window, if switched on, holds in every block. */
export const qwen3Moe: Architecture = {
  ...qwen3,
  modelType: 'qwen3_moe',
  className: 'Qwen3MoeForCausalLM',
  attention: {
    ...qwen3.attention,
    headDim: 'hidden/heads',
    window: {
      enabled: { keys: ['use_sliding_window'], otherwise: false },
      otherwise: 4096,
      fullBlocks: 0,
      layerTypes: false,
    },
  },
  experts: qwenExperts,
};
