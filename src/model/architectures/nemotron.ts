import type { Architecture } from '../architecture.js';
import { llama } from './llama.js';

/** Nemotron 3 and 4, Minitron (arXiv:2402.16819): LayerNorms that multiply by 1 + weight, half of each head rotated, ReLU squared. */
export const nemotron: Architecture = {
  ...llama,
  modelType: 'nemotron',
  className: 'NemotronForCausalLM',
  norm: { kind: 'layer', epsilon: { keys: ['norm_eps'], otherwise: 1e-5 }, offset: 1 },
  attention: { ...llama.attention, rope: { style: 'half', theta: 10_000, share: 0.5, partial: true } },
  mlp: {
    kind: 'plain',
    names: { norm: 'post_attention_layernorm', up: 'mlp.up_proj', down: 'mlp.down_proj' },
    bias: { keys: ['mlp_bias'], otherwise: false },
    activation: { keys: ['hidden_act'], otherwise: 'relu2' },
    intermediate: ['intermediate_size'],
  },
};
