import type { Architecture } from '../architecture.js';
import type { ExpertsTable } from '../tables/experts.js';
import { llama } from './llama.js';
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

/**
 * The language model of Qwen3-VL-MoE: weights of experts always add up to 1, and the linears of all experts of a block are in one
 * tensor. Published files have those as [E, in, out], transformers 5 saves [E, out, in].
 */
export const qwen3VlMoe: Architecture = {
  ...qwen3Moe,
  attention: { ...qwen3Moe.attention, headDim: 128, window: llama.attention.window },
  experts: {
    ...qwenExperts,
    normalize: true,
    fused: [
      { tensor: 'mlp.experts.gate_up_proj', parts: ['gate', 'up'], stored: 'either' },
      { tensor: 'mlp.experts.down_proj', parts: ['down'], stored: 'either' },
    ],
    named: 'some',
  },
};
