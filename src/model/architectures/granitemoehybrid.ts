import type { Architecture } from '../architecture.js';
import { MAMBA2 } from '../mixers/mamba-keys.js';
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
      ...MAMBA2,
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
