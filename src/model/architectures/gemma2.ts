import type { Architecture } from '../architecture.js';
import { llama } from './llama.js';

/**
 * Gemma 2 (arXiv:2408.00118): norms that multiply by 1 + weight, before and after each branch; soft caps on scores and
 * logits; a window in every other block, the first included; embeddings times sqrt(hidden).
 */
export const gemma2: Architecture = {
  ...llama,
  modelType: 'gemma2',
  className: 'Gemma2ForCausalLM',
  only: { use_bidirectional_attention: false },
  tied: { keys: ['tie_word_embeddings'], otherwise: true },
  norm: { ...llama.norm, offset: 1 },
  embedding: { scale: 'root-hidden' },
  logits: { softCap: { keys: ['final_logit_softcapping'], otherwise: 30 } },
  attention: {
    ...llama.attention,
    names: { ...llama.attention.names, postNorm: 'post_attention_layernorm' },
    headDim: 256,
    scale: { rootOf: { keys: ['query_pre_attn_scalar'], otherwise: 256 } },
    softCap: { keys: ['attn_logit_softcapping'], otherwise: 50 },
    window: { enabled: true, otherwise: 4096, fullBlocks: 0, fullEvery: 2, layerTypes: true },
  },
  mlp: {
    names: {
      norm: 'pre_feedforward_layernorm',
      gate: 'mlp.gate_proj',
      up: 'mlp.up_proj',
      down: 'mlp.down_proj',
      postNorm: 'post_feedforward_layernorm',
    },
    bias: false,
    activation: { keys: ['hidden_activation'], otherwise: 'gelu_pytorch_tanh' },
    intermediate: ['intermediate_size'],
  },
};
