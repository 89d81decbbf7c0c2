import type { Architecture } from '../architecture.js';
import type { ExpertsTable } from '../tables/experts.js';
import { mistral } from './mistral.js';

/** The best experts, whose shares are a softmax among them. */
export const mixtralExperts = {
  names: {
    router: 'block_sparse_moe.gate',
    gate: 'block_sparse_moe.experts.{expert}.w1',
    up: 'block_sparse_moe.experts.{expert}.w3',
    down: 'block_sparse_moe.experts.{expert}.w2',
  },
  count: ['num_local_experts', 'num_experts'],
  perToken: ['num_experts_per_tok'],
  intermediate: ['intermediate_size'],
  normalize: true,
  every: 1,
  denseBlocks: 'mlp_only_layers',
} satisfies ExpertsTable;

/** Mixtral 8x7B and 8x22B: Mistral with experts in every block; no window unless the config says one. */
export const mixtral: Architecture = {
  ...mistral,
  modelType: 'mixtral',
  className: 'MixtralForCausalLM',
  norm: { kind: 'rms', epsilon: { keys: ['rms_norm_eps'], otherwise: 1e-5 } },
  attention: {
    ...mistral.attention,
    rope: { style: 'half', theta: 1_000_000 },
    window: { enabled: true, otherwise: null, fullBlocks: 0, layerTypes: false },
  },
  experts: mixtralExperts,
};
