import type { Architecture } from '../architecture.js';
import { CONVOLUTIONS_STAY, GATES_STAY, NARROW_STAY, STATES_STAY } from '../mixers/table.js';
import { deepseekV3 } from './deepseek_v3.js';

const { theta: _, ...withoutRotation } = deepseekV3.mla!;

const sparse = 'block_sparse_moe';

/**
 * Kimi Linear (arXiv:2510.26692): delta attention that forgets channel by channel, latent attention without rotation in every fourth
 * block, and DeepSeek's experts.
 */
export const kimiLinear: Architecture = {
  ...deepseekV3,
  modelType: 'kimi_linear',
  className: 'KimiLinearForCausalLM',
  sizes: { positions: ['model_max_length', 'max_position_embeddings'] },
  only: { mla_use_nope: true, hidden_act: 'silu', moe_layer_freq: 1, moe_router_activation_func: 'sigmoid' },
  published: {
    lists: [],
    same: {},
    within: {
      key: 'linear_attn_config',
      settings: {
        head_dim: 'linear_head_dim',
        num_heads: 'linear_num_heads',
        short_conv_kernel_size: 'linear_conv_kernel_dim',
      },
      blocks: {
        as: 'layer_types',
        types: { full_attn_layers: 'full_attention', kda_layers: 'linear_attention' },
      },
    },
  },
  // transformers writes its own name for two of the checkpoint's.
  respelled: ['gate_proj', 'up_proj', 'down_proj'].map((name) => [`mlp.${name}`, `${sparse}.${name}`] as const),
  norm: { kind: 'rms', epsilon: { keys: ['rms_norm_eps'], otherwise: 1e-5 } },
  recurrent: {
    blocks: { type: 'linear_attention', attention: ['full_attention'], stated: true },
    names: { norm: 'input_layernorm' },
    mixer: {
      kind: 'delta',
      names: {
        order: 'separate',
        q: 'self_attn.q_proj',
        k: 'self_attn.k_proj',
        v: 'self_attn.v_proj',
        gate: ['self_attn.g_a_proj', 'self_attn.g_b_proj'],
        b: 'self_attn.b_proj',
        a: ['self_attn.f_a_proj', 'self_attn.f_b_proj'],
        convs: ['self_attn.q_conv1d', 'self_attn.k_conv1d', 'self_attn.v_conv1d'],
        rate: 'self_attn.A_log',
        bias: 'self_attn.dt_bias',
        norm: 'self_attn.o_norm',
        output: 'self_attn.o_proj',
      },
      keyHeads: ['linear_num_heads'],
      heads: ['linear_num_heads'],
      keyDim: ['linear_head_dim'],
      valueDim: ['linear_head_dim'],
      taps: { keys: ['linear_conv_kernel_dim'], otherwise: 4 },
      gateActivation: 'sigmoid',
      byChannel: true,
      rateShape: [1, 1, undefined, 1],
    },
    carried: {
      convolutions: CONVOLUTIONS_STAY,
      'narrow gates': NARROW_STAY,
      "a state's gates": GATES_STAY,
      "a state's parameters": STATES_STAY,
    },
  },
  mla: { ...withoutRotation, scaleScores: false },
  experts: {
    ...deepseekV3.experts!,
    names: {
      router: `${sparse}.gate`,
      gate: `${sparse}.experts.{expert}.w1`,
      up: `${sparse}.experts.{expert}.w3`,
      down: `${sparse}.experts.{expert}.w2`,
      choiceBias: `${sparse}.gate.e_score_correction_bias`,
    },
    count: ['num_experts', 'num_local_experts'],
    perToken: ['num_experts_per_token', 'num_experts_per_tok'],
    scoring: 'sigmoid',
    normalize: { keys: ['moe_renormalize', 'norm_topk_prob'], otherwise: true },
    scale: { keys: ['routed_scaling_factor'], otherwise: 2.446 },
    groups: { count: 'num_expert_group', top: 'topk_group', score: 'two best' },
    shared: {
      names: {
        gate: `${sparse}.shared_experts.gate_proj`,
        up: `${sparse}.shared_experts.up_proj`,
        down: `${sparse}.shared_experts.down_proj`,
      },
      intermediate: { times: { keys: ['num_shared_experts', 'n_shared_experts'], otherwise: 0 } },
    },
    blockTypes: 'mlp_layer_types',
    firstDense: { keys: ['first_k_dense_replace'], otherwise: 1 },
  },
};
