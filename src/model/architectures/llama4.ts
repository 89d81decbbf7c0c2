import type { Architecture } from '../architecture.js';
import { llama } from './llama.js';

/**
 * The language model of Llama 4 Scout and Maverick: three blocks of chunked attention with neighbours rotated and bare norms after it
 * for each without any; experts whose inputs are weighed, beside one that every token goes through.
 */
export const llama4Text: Architecture = {
  ...llama,
  modelType: 'llama4_text',
  className: 'Llama4ForCausalLM',
  defaults: { num_key_value_heads: 8, num_experts_per_tok: 1, num_local_experts: 16, intermediate_size: 8192 },
  norm: { kind: 'rms', epsilon: { keys: ['rms_norm_eps'], otherwise: 1e-5 } },
  attention: {
    ...llama.attention,
    headDim: 128,
    headNorm: { bare: true, afterRotation: true, enabled: { keys: ['use_qk_norm'], otherwise: true } },
    rope: {
      style: 'interleaved',
      theta: 500_000,
      skip: { list: 'no_rope_layers', every: { keys: ['no_rope_layer_interval'], otherwise: 4 } },
    },
    chunk: { keys: ['attention_chunk_size'], otherwise: 8192 },
    temperature: {
      enabled: { keys: ['attn_temperature_tuning'], otherwise: true },
      unrotated: true,
      beta: { keys: ['attn_scale'], otherwise: 0.1 },
      length: { keys: ['floor_scale'], otherwise: 8192 },
      offset: 1,
    },
  },
  mlp: {
    names: {
      norm: 'post_attention_layernorm',
      gate: 'feed_forward.gate_proj',
      up: 'feed_forward.up_proj',
      down: 'feed_forward.down_proj',
    },
    bias: false,
    activation: { keys: ['hidden_act'], otherwise: 'silu' },
    intermediate: ['intermediate_size_mlp'],
  },
  experts: {
    names: {
      router: 'feed_forward.router',
      gate: 'feed_forward.experts.{expert}.gate_proj',
      up: 'feed_forward.experts.{expert}.up_proj',
      down: 'feed_forward.experts.{expert}.down_proj',
    },
    count: ['num_local_experts', 'num_experts'],
    perToken: ['num_experts_per_tok'],
    intermediate: ['intermediate_size'],
    scoring: 'sigmoid',
    weighInput: true,
    normalize: false,
    shared: {
      names: {
        gate: 'feed_forward.shared_expert.gate_proj',
        up: 'feed_forward.shared_expert.up_proj',
        down: 'feed_forward.shared_expert.down_proj',
      },
      intermediate: { keys: ['intermediate_size'] },
    },
    sparseBlocks: 'moe_layers',
    every: { keys: ['interleave_moe_layer_step'], otherwise: 1 },
    denseBlocks: 'mlp_only_layers',
    fused: [
      { tensor: 'feed_forward.experts.gate_up_proj', parts: ['gate', 'up'], stored: 'in-out' },
      { tensor: 'feed_forward.experts.down_proj', parts: ['down'], stored: 'in-out' },
    ],
  },
};
