import type { Architecture } from '../architecture.js';

/** Llama 1, 2 and 3, and the many models that keep its class (TinyLlama, Yi, DeepSeek-LLM, SmolLM). */
export const llama: Architecture = {
  modelType: 'llama',
  className: 'LlamaForCausalLM',
  names: {
    embedding: 'model.embed_tokens',
    finalNorm: 'model.norm',
    head: 'lm_head',
    block: 'model.layers.{layer}.',
  },
  tied: { keys: ['tie_word_embeddings'], otherwise: false },
  norm: { kind: 'rms', epsilon: { keys: ['rms_norm_eps'], otherwise: 1e-6 } },
  attention: {
    names: {
      norm: 'input_layernorm',
      q: 'self_attn.q_proj',
      k: 'self_attn.k_proj',
      v: 'self_attn.v_proj',
      o: 'self_attn.o_proj',
    },
    bias: {
      q: { keys: ['attention_bias'], otherwise: false },
      k: { keys: ['attention_bias'], otherwise: false },
      v: { keys: ['attention_bias'], otherwise: false },
      o: { keys: ['attention_bias'], otherwise: false },
    },
    headDim: 'hidden/heads',
    rope: { style: 'half', theta: 10_000 },
    window: { enabled: false, otherwise: null, fullBlocks: 0, layerTypes: false },
  },
  mlp: {
    names: { norm: 'post_attention_layernorm', gate: 'mlp.gate_proj', up: 'mlp.up_proj', down: 'mlp.down_proj' },
    bias: { keys: ['mlp_bias'], otherwise: false },
    activation: { keys: ['hidden_act'], otherwise: 'silu' },
    intermediate: ['intermediate_size'],
  },
};
