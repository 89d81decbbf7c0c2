import type { Architecture } from '../architecture.js';
import { llama } from './llama.js';

/** Cohere's Command R: one LayerNorm without bias for attention and MLP side by side, pairs of neighbours rotated. */
export const cohere: Architecture = {
  ...llama,
  modelType: 'cohere',
  className: 'CohereForCausalLM',
  tied: { keys: ['tie_word_embeddings'], otherwise: true },
  norm: { kind: 'layer', epsilon: { keys: ['layer_norm_eps'], otherwise: 1e-5 }, bias: false },
  residual: { parallel: true },
  logits: { multiply: { keys: ['logit_scale'], otherwise: 0.0625 } },
  attention: {
    ...llama.attention,
    names: { ...llama.attention.names, qNorm: 'self_attn.q_norm', kNorm: 'self_attn.k_norm' },
    headNorm: { over: 'own-head', enabled: { keys: ['use_qk_norm'], otherwise: false } },
    rope: { style: 'interleaved', theta: 10_000 },
  },
  mlp: {
    names: { norm: 'input_layernorm', gate: 'mlp.gate_proj', up: 'mlp.up_proj', down: 'mlp.down_proj' },
    bias: false,
    activation: { keys: ['hidden_act'], otherwise: 'silu' },
    intermediate: ['intermediate_size'],
  },
};

/** Command R7B and Command A: three blocks with a window and rotated positions for each that has neither. */
export const cohere2: Architecture = {
  ...cohere,
  modelType: 'cohere2',
  className: 'Cohere2ForCausalLM',
  attention: {
    ...cohere.attention,
    names: llama.attention.names,
    rope: { style: 'interleaved', theta: 10_000, slidingOnly: 'always' },
    window: {
      enabled: true,
      otherwise: 4096,
      fullBlocks: 0,
      fullEvery: { keys: ['sliding_window_pattern', '_sliding_window_pattern'], otherwise: 4 },
      layerTypes: true,
    },
  },
};
