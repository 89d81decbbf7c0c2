import type { Architecture } from '../architecture.js';
import { CONVOLUTIONS_STAY, GATES_STAY, STATES_STAY } from '../mixers/table.js';
import { llama } from './llama.js';

const { rope: _, ...unrotated } = llama.attention;

/** Jamba (arXiv:2403.19887): Mamba's state spaces, attention without rotation in one block of eight, experts in every other block. */
export const jamba: Architecture = {
  ...llama,
  modelType: 'jamba',
  className: 'JambaForCausalLM',
  defaults: { num_key_value_heads: 8, num_experts: 16, num_experts_per_tok: 2 },
  only: { hidden_act: 'silu' },
  names: { ...llama.names, finalNorm: 'model.final_layernorm' },
  norm: { kind: 'rms', epsilon: { keys: ['rms_norm_eps'], otherwise: 1e-6 } },
  recurrent: {
    blocks: {
      type: ['mamba', 'linear_attention'],
      attention: ['attention', 'full_attention'],
      attentionEvery: { keys: ['attn_layer_period'], otherwise: 8 },
      attentionOffset: { keys: ['attn_layer_offset'], otherwise: 4 },
    },
    names: { norm: 'input_layernorm' },
    mixer: {
      kind: 'mamba',
      names: {
        input: 'mamba.in_proj',
        conv: 'mamba.conv1d',
        select: 'mamba.x_proj',
        step: 'mamba.dt_proj',
        rate: 'mamba.A_log',
        skip: 'mamba.D',
        stepNorm: 'mamba.dt_layernorm',
        bNorm: 'mamba.b_layernorm',
        cNorm: 'mamba.c_layernorm',
        output: 'mamba.out_proj',
      },
      rank: ['mamba_dt_rank'],
      size: ['mamba_d_state'],
      taps: { keys: ['mamba_d_conv'], otherwise: 4 },
      expand: { keys: ['mamba_expand'], otherwise: 2 },
      convBias: { keys: ['mamba_conv_bias'], otherwise: true },
      bias: { keys: ['mamba_proj_bias'], otherwise: false },
    },
    carried: { convolutions: CONVOLUTIONS_STAY, "a state's gates": GATES_STAY, "a state's parameters": STATES_STAY },
  },
  attention: { ...unrotated, bias: { q: false, k: false, v: false, o: false }, headDim: 'hidden/heads' },
  mlp: {
    names: {
      norm: 'pre_ff_layernorm',
      gate: 'feed_forward.gate_proj',
      up: 'feed_forward.up_proj',
      down: 'feed_forward.down_proj',
    },
    bias: false,
    activation: { keys: ['hidden_act'], otherwise: 'silu' },
    intermediate: ['intermediate_size'],
  },
  experts: {
    names: {
      router: 'feed_forward.router',
      gate: 'feed_forward.experts.{expert}.gate_proj',
      up: 'feed_forward.experts.{expert}.up_proj',
      down: 'feed_forward.experts.{expert}.down_proj',
    },
    count: ['num_experts'],
    noneUpTo: 1,
    perToken: ['num_experts_per_tok'],
    intermediate: ['intermediate_size'],
    normalize: false,
    every: { keys: ['expert_layer_period'], otherwise: 2 },
    offset: { keys: ['expert_layer_offset'], otherwise: 1 },
    denseBlocks: 'mlp_only_layers',
  },
};
