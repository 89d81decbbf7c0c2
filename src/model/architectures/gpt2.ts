import type { Architecture } from '../architecture.js';

/** GPT-2: learned positions, linears stored as [K, N], and size names of its own. */
export const gpt2: Architecture = {
  modelType: 'gpt2',
  className: 'GPT2LMHeadModel',
  sizes: {
    hidden: ['n_embd', 'hidden_size'],
    layers: ['n_layer', 'num_hidden_layers'],
    heads: ['n_head', 'num_attention_heads'],
    positions: ['n_positions', 'max_position_embeddings'],
  },
  only: { add_cross_attention: false },
  names: {
    variants: [{ prefix: 'transformer.', instead: '' }],
    embedding: 'transformer.wte',
    positions: 'transformer.wpe',
    finalNorm: 'transformer.ln_f',
    head: 'lm_head',
    block: 'transformer.h.{layer}.',
  },
  tied: { keys: ['tie_word_embeddings'], otherwise: true },
  norm: { kind: 'layer', epsilon: { keys: ['layer_norm_epsilon'], otherwise: 1e-5 } },
  transposed: true,
  attention: {
    names: { norm: 'ln_1', qkv: 'attn.c_attn', order: 'parts', o: 'attn.c_proj' },
    bias: { q: true, k: true, v: true, o: true },
    headDim: 'hidden/heads',
    scale: {
      enabled: { keys: ['scale_attn_weights'], otherwise: true },
      byLayer: { keys: ['scale_attn_by_inverse_layer_idx'], otherwise: false },
    },
    window: { enabled: false, otherwise: null, fullBlocks: 0, layerTypes: false },
  },
  mlp: {
    kind: 'plain',
    names: { norm: 'ln_2', up: 'mlp.c_fc', down: 'mlp.c_proj' },
    bias: true,
    activation: { keys: ['activation_function'], otherwise: 'gelu_new' },
    intermediate: ['n_inner'],
    widening: 4,
  },
};
