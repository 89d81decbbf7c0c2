import type { Architecture } from '../architecture.js';
import { llama } from './llama.js';

/** Phi-3, 3.5 and Phi-4 (mini): one linear for q, k and v, one for gate and up; LongRoPE under three names. */
export const phi3: Architecture = {
  ...llama,
  modelType: 'phi3',
  className: 'Phi3ForCausalLM',
  norm: { kind: 'rms', epsilon: { keys: ['rms_norm_eps'], otherwise: 1e-5 } },
  attention: {
    ...llama.attention,
    names: { norm: 'input_layernorm', qkv: 'self_attn.qkv_proj', order: 'parts', o: 'self_attn.o_proj' },
    bias: { q: false, k: false, v: false, o: false },
    rope: { style: 'half', theta: 10_000, partial: true, original: 4096, kinds: { su: 'longrope', yarn: 'longrope' } },
    window: { enabled: true, otherwise: null, fullBlocks: 0, layerTypes: false },
  },
  mlp: {
    kind: 'fused',
    names: { norm: 'post_attention_layernorm', gateUp: 'mlp.gate_up_proj', down: 'mlp.down_proj' },
    bias: false,
    activation: { keys: ['hidden_act'], otherwise: 'silu' },
    intermediate: ['intermediate_size'],
  },
};
