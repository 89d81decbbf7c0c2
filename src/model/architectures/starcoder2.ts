import type { Architecture } from '../architecture.js';
import type { Setting } from '../config.js';
import { llama } from './llama.js';

const biased: Setting<boolean> = { keys: ['use_bias'], otherwise: true };

/** StarCoder 2 (arXiv:2402.19173): Llama's attention between LayerNorms, an MLP without a gate, biases throughout. */
export const starcoder2: Architecture = {
  ...llama,
  modelType: 'starcoder2',
  className: 'Starcoder2ForCausalLM',
  tied: { keys: ['tie_word_embeddings'], otherwise: true },
  norm: { kind: 'layer', epsilon: { keys: ['norm_epsilon'], otherwise: 1e-5 } },
  attention: {
    ...llama.attention,
    bias: { q: biased, k: biased, v: biased, o: biased },
    window: { enabled: true, otherwise: null, fullBlocks: 0, layerTypes: false },
  },
  mlp: {
    kind: 'plain',
    names: { norm: 'post_attention_layernorm', up: 'mlp.c_fc', down: 'mlp.c_proj' },
    bias: biased,
    activation: { keys: ['hidden_act'], otherwise: 'gelu_pytorch_tanh' },
    intermediate: ['intermediate_size'],
  },
};
