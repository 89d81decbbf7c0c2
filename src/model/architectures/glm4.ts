import type { Architecture } from '../architecture.js';
import { llama } from './llama.js';
import { phi3 } from './phi3.js';

/** GLM-4 (0414): norms before and after each branch, neighbours of half of each head rotated, gate and up in one linear. */
export const glm4: Architecture = {
  ...llama,
  modelType: 'glm4',
  className: 'Glm4ForCausalLM',
  norm: { kind: 'rms', epsilon: { keys: ['rms_norm_eps'], otherwise: 0.00000015625 } },
  attention: {
    ...llama.attention,
    names: { ...llama.attention.names, postNorm: 'post_self_attn_layernorm' },
    bias: { ...llama.attention.bias, o: false },
    headDim: 128,
    rope: { style: 'interleaved', theta: 10_000, share: 0.5, partial: true },
  },
  mlp: {
    ...phi3.mlp,
    kind: 'fused',
    names: {
      norm: 'post_attention_layernorm',
      gateUp: 'mlp.gate_up_proj',
      down: 'mlp.down_proj',
      postNorm: 'post_mlp_layernorm',
    },
  },
};

/** The language model of GLM-4.1V: GLM-4 with biases on q, k and v, and heads that are parts of the hidden size. */
export const glm4v: Architecture = {
  ...glm4,
  norm: { kind: 'rms', epsilon: { keys: ['rms_norm_eps'], otherwise: 1e-5 } },
  attention: {
    ...glm4.attention,
    bias: { q: true, k: true, v: true, o: false },
    headDim: 'hidden/heads',
    rope: { style: 'interleaved', theta: 10_000, share: 1, partial: true },
  },
};
