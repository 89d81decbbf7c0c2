import type { Architecture } from '../architecture.js';
import { llama } from './llama.js';

/** Apertus (arXiv:2509.14233): norms on the heads of q and k, an MLP without a gate and with the activation xIELU. */
export const apertus: Architecture = {
  ...llama,
  modelType: 'apertus',
  className: 'ApertusForCausalLM',
  norm: { kind: 'rms', epsilon: { keys: ['rms_norm_eps'], otherwise: 1e-5 } },
  attention: {
    ...llama.attention,
    names: {
      ...llama.attention.names,
      norm: 'attention_layernorm',
      qNorm: 'self_attn.q_norm',
      kNorm: 'self_attn.k_norm',
    },
    rope: {
      style: 'half',
      theta: 12_000_000,
      parameters: {
        rope_type: 'llama3',
        rope_theta: 12_000_000,
        factor: 8,
        original_max_position_embeddings: 8192,
        low_freq_factor: 1,
        high_freq_factor: 4,
      },
    },
  },
  mlp: {
    kind: 'plain',
    names: { norm: 'feedforward_layernorm', up: 'mlp.up_proj', down: 'mlp.down_proj', xielu: 'mlp.act_fn' },
    bias: false,
    activation: { keys: ['hidden_act'], otherwise: 'xielu' },
    intermediate: ['intermediate_size'],
  },
};
