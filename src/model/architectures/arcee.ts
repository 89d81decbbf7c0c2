import type { Architecture } from '../architecture.js';
import { llama } from './llama.js';

/** Arcee's AFM: Llama with an MLP without a gate, whose activation is the square of ReLU. */
export const arcee: Architecture = {
  ...llama,
  modelType: 'arcee',
  className: 'ArceeForCausalLM',
  norm: { kind: 'rms', epsilon: { keys: ['rms_norm_eps'], otherwise: 1e-5 } },
  mlp: {
    kind: 'plain',
    names: { norm: 'post_attention_layernorm', up: 'mlp.up_proj', down: 'mlp.down_proj' },
    bias: { keys: ['mlp_bias'], otherwise: false },
    activation: { keys: ['hidden_act'], otherwise: 'relu2' },
    intermediate: ['intermediate_size'],
  },
};
