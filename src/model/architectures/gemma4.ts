import type { Architecture } from '../architecture.js';
import { gemma3Text } from './gemma3.js';

/**
 * Gemma 4's text models: Gemma 3 with norms that multiply by their weight alone, values that are normalised, scores that are not
 * scaled, wider heads in blocks without a window, and, by size, per-layer embeddings, blocks that share keys and values, keys that are
 * values, and experts beside the MLP.
 */
export const gemma4Text: Architecture = {
  ...gemma3Text,
  modelType: 'gemma4_text',
  className: 'Gemma4ForCausalLM',
  // "vision" is about the tokens of images.
  only: { use_bidirectional_attention: 'vision' },
  defaults: {
    vocab_size: 262_144,
    hidden_size: 2304,
    intermediate_size: 9216,
    num_hidden_layers: 30,
    num_attention_heads: 8,
    num_key_value_heads: 4,
  },
  names: {
    ...gemma3Text.names,
    perLayer: 'model.embed_tokens_per_layer',
    perLayerLinear: 'model.per_layer_model_projection',
    perLayerNorm: 'model.per_layer_projection_norm',
  },
  norm: { kind: 'rms', epsilon: { keys: ['rms_norm_eps'], otherwise: 1e-6 } },
  attention: {
    ...gemma3Text.attention,
    scale: { factor: 1 },
    valueNorm: true,
    full: {
      byBlock: 'per_layer_config',
      headDim: { keys: ['global_head_dim'], otherwise: 512 },
      kvHeads: 'num_global_key_value_heads',
      keysAsValues: { keys: ['attention_k_eq_v'], otherwise: false },
    },
    sharedKv: { keys: ['num_kv_shared_layers'], otherwise: 0 },
    rope: {
      style: 'half',
      theta: 10_000,
      parameters: {
        sliding_attention: { rope_type: 'default', rope_theta: 10_000 },
        full_attention: { rope_type: 'proportional', partial_rotary_factor: 0.25, rope_theta: 1_000_000 },
      },
    },
    window: { enabled: true, otherwise: 512, fullBlocks: 0, fullEvery: 6, layerTypes: true, lastFull: true },
  },
  mlp: { ...gemma3Text.mlp, doubledShared: { keys: ['use_double_wide_mlp'], otherwise: false } },
  experts: {
    enabled: { key: 'enable_moe_block' },
    names: {
      router: 'router.proj',
      gate: 'experts.{expert}.gate_proj',
      up: 'experts.{expert}.up_proj',
      down: 'experts.{expert}.down_proj',
    },
    count: ['num_experts'],
    perToken: ['top_k_experts'],
    intermediate: ['moe_intermediate_size'],
    normalize: true,
    apart: {
      norm: 'pre_feedforward_layernorm_2',
      postNorm: 'post_feedforward_layernorm_2',
      sharedPostNorm: 'post_feedforward_layernorm_1',
      routerScale: 'router.scale',
      expertScale: 'router.per_expert_scale',
    },
    shared: {
      names: { gate: 'mlp.gate_proj', up: 'mlp.up_proj', down: 'mlp.down_proj' },
      intermediate: { keys: ['intermediate_size'] },
    },
    every: 1,
    denseBlocks: 'mlp_only_layers',
    fused: [
      { tensor: 'experts.gate_up_proj', parts: ['gate', 'up'], stored: 'out-in' },
      { tensor: 'experts.down_proj', parts: ['down'], stored: 'out-in' },
    ],
    named: 'some',
  },
  perLayer: {
    size: { keys: ['hidden_size_per_layer_input'], otherwise: 256 },
    vocab: { keys: ['vocab_size_per_layer_input'], otherwise: 262_144 },
    gate: 'per_layer_input_gate',
    back: 'per_layer_projection',
    postNorm: 'post_per_layer_input_norm',
  },
  blockScale: 'layer_scalar',
};
