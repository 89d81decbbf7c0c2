import type { Architecture } from '../architecture.js';
import { CONVOLUTIONS_STAY, STATES_STAY } from '../mixers/table.js';
import { graniteMoe } from './granitemoe.js';

/** Granite 4: state spaces, attention without rotation in a few blocks, and experts beside an MLP that every token goes through, or that MLP alone. */
export const graniteMoeHybrid: Architecture = {
  ...graniteMoe,
  modelType: 'granitemoehybrid',
  className: 'GraniteMoeHybridForCausalLM',
  only: { hidden_act: 'silu', attention_bias: false },
  norm: { kind: 'rms', epsilon: { keys: ['rms_norm_eps'], otherwise: 1e-6 } },
  defaults: { num_local_experts: 8, num_experts_per_tok: 2, shared_intermediate_size: 1024 },
  recurrent: {
    blocks: { type: ['mamba', 'linear_attention'], attention: ['attention', 'full_attention'], stated: true },
    names: { norm: 'input_layernorm' },
    mixer: {
      kind: 'mamba2',
      names: {
        input: 'mamba.in_proj',
        conv: 'mamba.conv1d',
        rate: 'mamba.A_log',
        bias: 'mamba.dt_bias',
        skip: 'mamba.D',
        norm: 'mamba.norm',
        output: 'mamba.out_proj',
      },
      heads: ['mamba_n_heads'],
      headDim: ['mamba_d_head'],
      groups: ['mamba_n_groups'],
      size: ['mamba_d_state'],
      taps: { keys: ['mamba_d_conv'], otherwise: 4 },
      expand: { keys: ['mamba_expand'], otherwise: 2 },
      convBias: { keys: ['mamba_conv_bias'], otherwise: true },
      bias: {
        input: { keys: ['mamba_proj_bias'], otherwise: false },
        output: { keys: ['mamba_proj_bias'], otherwise: false },
      },
      limit: { list: 'time_step_limit' },
      norm: { enabled: true, first: false, grouped: false },
    },
    carried: { convolutions: CONVOLUTIONS_STAY, "a state's parameters": STATES_STAY },
  },
  attention: {
    ...graniteMoe.attention,
    rope: { style: 'half', theta: 10_000, when: { key: 'position_embedding_type', is: 'rope' } },
  },
  mlp: {
    kind: 'fused',
    names: {
      norm: 'post_attention_layernorm',
      gateUp: 'shared_mlp.input_linear',
      down: 'shared_mlp.output_linear',
    },
    bias: false,
    activation: { keys: ['hidden_act'], otherwise: 'silu' },
    intermediate: ['shared_intermediate_size'],
  },
  experts: {
    ...graniteMoe.experts!,
    noneUpTo: 0,
    shared: {
      names: { gateUp: 'shared_mlp.input_linear', down: 'shared_mlp.output_linear' },
      intermediate: { keys: ['shared_intermediate_size'] },
    },
  },
};
