import type { Architecture } from '../architecture.js';
import { llama } from './llama.js';

const bias = { keys: ['use_qkv_bias'], otherwise: false } as const;

/** StableLM 3B and StableLM 2: Llama between LayerNorms, a quarter of each head rotated; the 12B has its branches side by side. */
export const stablelm: Architecture = {
  ...llama,
  modelType: 'stablelm',
  className: 'StableLmForCausalLM',
  defaults: { num_key_value_heads: 32 },
  norm: { kind: 'layer', epsilon: { keys: ['layer_norm_eps'], otherwise: 1e-5 } },
  residual: { parallel: { keys: ['use_parallel_residual'], otherwise: false }, sharedNorm: true },
  attention: {
    ...llama.attention,
    names: {
      ...llama.attention.names,
      qNorm: 'self_attn.q_layernorm.norms.{head}',
      kNorm: 'self_attn.k_layernorm.norms.{head}',
    },
    headNorm: { over: 'own-head', enabled: { keys: ['qk_layernorm'], otherwise: false }, bias: false },
    bias: { q: bias, k: bias, v: bias, o: false },
    rope: { style: 'half', theta: 10_000, share: 0.25, partial: true, shareKeys: ['rope_pct'] },
  },
  mlp: { ...llama.mlp, bias: false },
};
