import type { Architecture } from '../architecture.js';
import { FOLLOWING_BLOCKS } from '../tables/prediction.js';
import { qwen3Moe, qwenExperts } from './qwen3-moe.js';

/** Hunyuan 3: Qwen3's attention, DeepSeek-V3's shares without groups, one dense block first. */
export const hyV3: Architecture = {
  ...qwen3Moe,
  modelType: 'hy_v3',
  className: 'HYV3ForCausalLM',
  only: { mlp_bias: false },
  defaults: { num_key_value_heads: 8 },
  norm: { kind: 'rms', epsilon: { keys: ['rms_norm_eps'], otherwise: 1e-5 } },
  attention: {
    ...qwen3Moe.attention,
    headDim: 128,
    rope: { style: 'half', theta: 11_158_840 },
    window: { enabled: false, otherwise: null, fullBlocks: 0, layerTypes: false },
  },
  prediction: {
    ...FOLLOWING_BLOCKS,
    names: { ...FOLLOWING_BLOCKS.names, finalNorm: 'model.layers.{layer}.final_layernorm' },
    normed: true,
    aliases: {},
  },
  experts: {
    ...qwenExperts,
    names: { ...qwenExperts.names, router: 'mlp.router.gate', choiceBias: 'mlp.expert_bias' },
    scoring: 'sigmoid',
    normalize: true,
    scale: { keys: ['router_scaling_factor'], otherwise: 2.826 },
    shared: {
      names: { gate: 'mlp.shared_mlp.gate_proj', up: 'mlp.shared_mlp.up_proj', down: 'mlp.shared_mlp.down_proj' },
      intermediate: { times: { keys: ['num_shared_experts'], otherwise: 1 } },
    },
    blockTypes: 'mlp_layer_types',
    every: 1,
    firstDense: 1,
  },
};
