import type { Architecture } from '../architecture.js';

/** GPT-NeoX and Pythia: attention and MLP side by side, q, k and v head by head in one linear, a quarter of each head rotated. */
export const gptNeox: Architecture = {
  modelType: 'gpt_neox',
  className: 'GPTNeoXForCausalLM',
  names: {
    variants: [{ prefix: 'gpt_neox.', instead: '' }],
    embedding: 'gpt_neox.embed_in',
    finalNorm: 'gpt_neox.final_layer_norm',
    head: 'embed_out',
    block: 'gpt_neox.layers.{layer}.',
  },
  tied: { keys: ['tie_word_embeddings'], otherwise: false },
  norm: { kind: 'layer', epsilon: { keys: ['layer_norm_eps'], otherwise: 1e-5 } },
  residual: { parallel: { keys: ['use_parallel_residual'], otherwise: true } },
  attention: {
    names: { norm: 'input_layernorm', qkv: 'attention.query_key_value', order: 'heads', o: 'attention.dense' },
    bias: {
      q: { keys: ['attention_bias'], otherwise: true },
      k: { keys: ['attention_bias'], otherwise: true },
      v: { keys: ['attention_bias'], otherwise: true },
      o: { keys: ['attention_bias'], otherwise: true },
    },
    headDim: 'hidden/heads',
    rope: {
      style: 'half',
      theta: 10_000,
      share: 0.25,
      partial: true,
      thetaKeys: ['rotary_emb_base'],
      shareKeys: ['rotary_pct'],
    },
    window: { enabled: false, otherwise: null, fullBlocks: 0, layerTypes: false },
  },
  mlp: {
    kind: 'plain',
    names: { norm: 'post_attention_layernorm', up: 'mlp.dense_h_to_4h', down: 'mlp.dense_4h_to_h' },
    bias: true,
    activation: { keys: ['hidden_act'], otherwise: 'gelu' },
    intermediate: ['intermediate_size'],
  },
};
