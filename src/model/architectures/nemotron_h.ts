import type { Architecture } from '../architecture.js';
import { CONVOLUTIONS_STAY, STATES_STAY } from '../mixers/table.js';
import { llama } from './llama.js';

const { rope: _, ...unrotated } = llama.attention;

/**
 * Nemotron-H and Nemotron 3 (arXiv:2504.03624): blocks of one branch each, a state space, attention without rotation, an MLP, or experts
 * without gates beside one that every token goes through. Layers of multi-token prediction (`mtp.…`) are carried.
 */
export const nemotronH: Architecture = {
  ...llama,
  modelType: 'nemotron_h',
  className: 'NemotronHForCausalLM',
  only: {
    mamba_hidden_act: 'silu',
    attention_bias: false,
    mlp_bias: false,

    sliding_window: null,
  },
  published: {
    lists: [],
    same: {},
    blockTypes: {
      list: 'layers_block_type',
      pattern: 'hybrid_override_pattern',
      letters: { M: 'linear_attention', E: 'moe', '*': 'full_attention', '-': 'mlp' },
    },
  },
  names: {
    embedding: 'backbone.embeddings',
    finalNorm: 'backbone.norm_f',
    head: 'lm_head',
    block: 'backbone.layers.{layer}.',
  },
  norm: { kind: 'rms', epsilon: { keys: ['layer_norm_epsilon'], otherwise: 1e-5 } },
  single: { attention: ['full_attention', 'attention'], mlp: ['mlp'], experts: ['moe'] },
  recurrent: {
    blocks: {
      type: ['linear_attention', 'mamba'],
      attention: ['full_attention', 'attention', 'mlp', 'moe'],
      stated: true,
    },
    names: { norm: 'norm' },
    mixer: {
      kind: 'mamba2',
      names: {
        input: 'mixer.in_proj',
        conv: 'mixer.conv1d',
        rate: 'mixer.A_log',
        bias: 'mixer.dt_bias',
        skip: 'mixer.D',
        norm: 'mixer.norm',
        output: 'mixer.out_proj',
      },
      heads: ['mamba_num_heads'],
      headDim: ['mamba_head_dim'],
      groups: ['n_groups', 'mamba_n_groups'],
      size: ['ssm_state_size'],
      taps: { keys: ['conv_kernel', 'mamba_d_conv'], otherwise: 4 },
      expand: { keys: ['expand', 'mamba_expand'], otherwise: 2 },
      convBias: { keys: ['use_conv_bias', 'mamba_conv_bias'], otherwise: true },
      bias: { input: { keys: ['use_bias'], otherwise: false }, output: { keys: ['use_bias'], otherwise: false } },
      limit: { least: { keys: ['time_step_min', 'mamba_dt_min'], otherwise: 0.001 } },
      norm: { enabled: true, first: false, grouped: true },
    },
    carried: { convolutions: CONVOLUTIONS_STAY, "a state's parameters": STATES_STAY },
  },
  attention: {
    ...unrotated,
    names: { norm: 'norm', q: 'mixer.q_proj', k: 'mixer.k_proj', v: 'mixer.v_proj', o: 'mixer.o_proj' },
    bias: { q: false, k: false, v: false, o: false },
  },
  mlp: {
    kind: 'plain',
    names: { norm: 'norm', up: 'mixer.up_proj', down: 'mixer.down_proj' },
    bias: { keys: ['mlp_bias'], otherwise: false },
    activation: { keys: ['mlp_hidden_act'], otherwise: 'relu2' },
    intermediate: ['intermediate_size'],
  },
  experts: {
    names: {
      router: 'mixer.gate',
      up: 'mixer.experts.{expert}.up_proj',
      down: 'mixer.experts.{expert}.down_proj',
      choiceBias: 'mixer.gate.e_score_correction_bias',
    },
    count: ['n_routed_experts'],
    perToken: ['num_experts_per_tok'],
    intermediate: ['moe_intermediate_size'],
    scoring: 'sigmoid',
    normalize: { keys: ['norm_topk_prob'], otherwise: true },
    scale: { keys: ['routed_scaling_factor'], otherwise: 1 },
    groups: { count: 'n_group', top: 'topk_group', score: 'two best' },
    latent: { size: 'moe_latent_size', into: 'mixer.fc1_latent_proj', back: 'mixer.fc2_latent_proj' },
    shared: {
      names: { up: 'mixer.shared_experts.up_proj', down: 'mixer.shared_experts.down_proj' },
      intermediate: { keys: ['moe_shared_expert_intermediate_size'] },
    },
    every: 1,
    denseBlocks: 'mlp_only_layers',
    blockTypes: 'mlp_layer_types',
  },
};
