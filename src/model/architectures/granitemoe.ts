import type { Architecture } from '../architecture.js';
import { granite } from './granite.js';

/** Granite 3 1B-A400M and 3B-A800M: Granite with experts in every block, whose linears share a tensor. */
export const graniteMoe: Architecture = {
  ...granite,
  modelType: 'granitemoe',
  className: 'GraniteMoeForCausalLM',
  experts: {
    names: {
      router: 'block_sparse_moe.router.layer',
      gate: 'block_sparse_moe.experts.{expert}.gate_proj',
      up: 'block_sparse_moe.experts.{expert}.up_proj',
      down: 'block_sparse_moe.experts.{expert}.down_proj',
    },
    count: ['num_local_experts', 'num_experts'],
    perToken: ['num_experts_per_tok'],
    intermediate: ['intermediate_size'],
    // A softmax over the chosen logits, which is the same.
    normalize: true,
    every: 1,
    denseBlocks: 'mlp_only_layers',
    fused: [
      { tensor: 'block_sparse_moe.input_linear.weight', parts: ['gate', 'up'], stored: 'out-in' },
      { tensor: 'block_sparse_moe.output_linear.weight', parts: ['down'], stored: 'out-in' },
    ],
  },
};
