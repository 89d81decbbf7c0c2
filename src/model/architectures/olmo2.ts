import type { Architecture } from '../architecture.js';
import { llama } from './llama.js';

/** OLMo 2 (arXiv:2501.00656): Llama with norms after the branches instead of before, and on q and k over all heads. */
export const olmo2: Architecture = {
  ...llama,
  modelType: 'olmo2',
  className: 'Olmo2ForCausalLM',
  norm: { kind: 'rms', epsilon: { keys: ['rms_norm_eps'], otherwise: 1e-5 } },
  attention: {
    ...llama.attention,
    names: {
      q: 'self_attn.q_proj',
      k: 'self_attn.k_proj',
      v: 'self_attn.v_proj',
      o: 'self_attn.o_proj',
      qNorm: 'self_attn.q_norm',
      kNorm: 'self_attn.k_norm',
      postNorm: 'post_attention_layernorm',
    },
    headNorm: { over: 'all' },
  },
  mlp: {
    names: {
      gate: 'mlp.gate_proj',
      up: 'mlp.up_proj',
      down: 'mlp.down_proj',
      postNorm: 'post_feedforward_layernorm',
    },
    bias: false,
    activation: { keys: ['hidden_act'], otherwise: 'silu' },
    intermediate: ['intermediate_size'],
  },
};
