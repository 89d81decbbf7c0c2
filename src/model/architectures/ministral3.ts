import type { Architecture } from '../architecture.js';
import { mistral } from './mistral.js';

/** Ministral 3: Mistral with YaRN, and queries that grow slowly with their position (as in Llama 4). */
export const ministral3: Architecture = {
  ...mistral,
  modelType: 'ministral3',
  className: 'Ministral3ForCausalLM',
  defaults: { num_key_value_heads: 8 },
  norm: { kind: 'rms', epsilon: { keys: ['rms_norm_eps'], otherwise: 1e-5 } },
  attention: {
    ...mistral.attention,
    headDim: 128,
    rope: {
      style: 'half',
      theta: 10_000,
      parameters: {
        rope_type: 'yarn',
        rope_theta: 1_000_000,
        factor: 16,
        original_max_position_embeddings: 16_384,
        beta_fast: 32,
        beta_slow: 1,
        mscale: 1,
        mscale_all_dim: 1,
        llama_4_scaling_beta: 0.1,
      },
    },
    temperature: {
      from: 'rope',
      beta: { keys: ['llama_4_scaling_beta'], otherwise: 0 },
      length: { keys: ['original_max_position_embeddings'], otherwise: 16_384 },
      offset: 0,
    },
    window: { enabled: true, otherwise: null, fullBlocks: 0, layerTypes: false },
  },
};
