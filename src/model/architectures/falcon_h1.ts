import type { Architecture } from '../architecture.js';
import { MAMBA2 } from '../mixers/mamba-keys.js';
import { CONVOLUTIONS_STAY, STATES_STAY } from '../mixers/table.js';
import { llama } from './llama.js';

const one = (key: string) => ({ keys: [key], otherwise: 1 });
/** Of what attention reads, and so of queries, keys and values. */
const input = one('attention_in_multiplier');

/** Falcon-H1 (arXiv:2507.22448): a state space beside attention in every block, and multipliers nearly everywhere. */
export const falconH1: Architecture = {
  ...llama,
  modelType: 'falcon_h1',
  className: 'FalconH1ForCausalLM',
  only: { attention_bias: false, mamba_proj_bias: false, hidden_act: 'silu' },
  names: { ...llama.names, finalNorm: 'model.final_layernorm' },
  norm: { kind: 'rms', epsilon: { keys: ['rms_norm_eps'], otherwise: 1e-5 } },
  embedding: { scale: one('embedding_multiplier') },
  logits: { multiply: one('lm_head_multiplier') },
  residual: { mixers: { attention: one('attention_out_multiplier'), recurrent: one('ssm_out_multiplier') } },
  recurrent: {
    blocks: { beside: true, type: [], attention: [] },
    names: { norm: 'input_layernorm' },
    mixer: {
      ...MAMBA2,
      channels: ['mamba_d_ssm'],
      bias: { input: false, output: { keys: ['projectors_bias'], otherwise: false } },
      limit: { list: 'time_step_limit' },
      norm: {
        enabled: { keys: ['mamba_rms_norm'], otherwise: false },
        first: { keys: ['mamba_norm_before_gate'], otherwise: true },
        grouped: true,
      },
      multipliers: { input: one('ssm_in_multiplier'), parts: 'ssm_multipliers' },
    },
    carried: { convolutions: CONVOLUTIONS_STAY, "a state's parameters": STATES_STAY },
  },
  attention: {
    ...llama.attention,
    scale: { times: [input, input, one('key_multiplier')] },
    valueScale: input,
  },
  mlp: {
    names: {
      norm: 'pre_ff_layernorm',
      gate: 'feed_forward.gate_proj',
      up: 'feed_forward.up_proj',
      down: 'feed_forward.down_proj',
    },
    bias: { keys: ['mlp_bias'], otherwise: false },
    activation: { keys: ['hidden_act'], otherwise: 'silu' },
    intermediate: ['intermediate_size'],
    multipliers: 'mlp_multipliers',
  },
};
