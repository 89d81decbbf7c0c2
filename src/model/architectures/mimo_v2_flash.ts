import type { Architecture } from '../architecture.js';
import { PROJECTIONS_STAY } from '../tables/prediction.js';
import { deepseekExperts } from './deepseek_v3.js';
import { llama } from './llama.js';

const { shared: _, ...experts } = deepseekExperts;
const turned = (theta: number) => ({ rope_type: 'default', rope_theta: theta, partial_rotary_factor: 0.334 });

/**
 * MiMo-V2-Flash: five blocks with a window, sinks and twice as many heads of keys and values for each without, the first one
 * without; heads whose values are narrower than their keys, and scaled; DeepSeek-V3's experts but for one dense block.
 */
export const mimoV2Flash: Architecture = {
  ...llama,
  modelType: 'mimo_v2_flash',
  className: 'MiMoV2FlashForCausalLM',
  only: { add_swa_attention_sink_bias: true, add_full_attention_sink_bias: false },
  published: {
    lists: [
      { key: 'hybrid_layer_pattern', as: 'layer_types', of: ['full_attention', 'sliding_attention'] },
      { key: 'moe_layer_freq', as: 'mlp_layer_types', of: ['dense', 'sparse'] },
    ],
    same: {
      swa_num_attention_heads: { as: 'num_attention_heads' },
      swa_num_key_value_heads: { as: 'num_key_value_heads', times: 2 },
      swa_head_dim: { as: 'head_dim' },
      swa_v_head_dim: { as: 'v_head_dim' },
      sliding_window_size: { as: 'sliding_window' },
    },
    rope: { local: 'swa_rope_theta' },
  },
  defaults: { num_key_value_heads: 4, v_head_dim: 128 },
  norm: { kind: 'rms', epsilon: { keys: ['rms_norm_eps', 'layernorm_epsilon'], otherwise: 1e-5 } },
  attention: {
    ...llama.attention,
    names: { ...llama.attention.names, sinks: 'self_attn.attention_sink_bias' },
    slidingSinks: true,
    slidingKvHeads: 2,
    valueDim: ['v_head_dim'],
    // biome-ignore lint/suspicious/noApproximativeNumericConstant: the class's default, which is no root
    valueScale: { keys: ['attention_value_scale'], otherwise: 0.707 },
    bias: { ...llama.attention.bias, o: false },
    headDim: 192,
    rope: {
      style: 'half',
      theta: 5_000_000,
      share: 0.334,
      partial: true,
      parameters: { full_attention: turned(5_000_000), sliding_attention: turned(10_000) },
    },
    window: { enabled: true, otherwise: 128, fullBlocks: 1, fullEvery: 6, layerTypes: true },
  },
  mlp: { ...llama.mlp, bias: false },
  prediction: {
    block: 'model.mtp.layers.{layer}.',
    numbered: 'anew',
    root: 'model.mtp.',
    names: {
      embeddingNorm: 'model.mtp.layers.{layer}.enorm',
      hiddenNorm: 'model.mtp.layers.{layer}.hnorm',
      projection: 'model.mtp.layers.{layer}.eh_proj',
      finalNorm: 'model.mtp.layers.{layer}.final_layernorm',
    },
    count: ['num_nextn_predict_layers'],
    like: 'sliding',
    mlpNorm: 'pre_mlp_layernorm',
    dense: true,
    normed: true,
    aliases: {},
    carried: { 'projections of multi-token prediction': PROJECTIONS_STAY },
  },
  experts: {
    ...experts,
    scoring: 'sigmoid',
    scale: { keys: ['routed_scaling_factor'], otherwise: 1 },
    blockTypes: 'mlp_layer_types',
    firstDense: 1,
  },
};
