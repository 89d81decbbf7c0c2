import type { Architecture } from '../architecture.js';
import { llama } from './llama.js';

const bias = { keys: ['attention_bias'], otherwise: true } as const;

/** Seed-OSS: Llama with heads of 128 dimensions and biases on q, k and v. */
export const seedOss: Architecture = {
  ...llama,
  modelType: 'seed_oss',
  className: 'SeedOssForCausalLM',
  defaults: { num_key_value_heads: 8 },
  attention: {
    ...llama.attention,
    bias: { q: bias, k: bias, v: bias, o: { keys: ['attention_out_bias'], otherwise: false } },
    headDim: 128,
  },
};
