import type { Architecture } from '../architecture.js';
import { CONVOLUTIONS_STAY, type DeltaLinears, GATES_STAY, type RecurrentTable, STATES_STAY } from '../mixers/table.js';
import { OWN_MODEL } from '../tables/prediction.js';
import { llama } from './llama.js';
import { qwen2Moe } from './qwen2_moe.js';
import { qwenExperts } from './qwen3-moe.js';

/** Gated delta nets, but for every fourth block. */
const deltaNet = (linears: DeltaLinears): RecurrentTable => ({
  blocks: {
    type: 'linear_attention',
    attention: ['full_attention'],
    attentionEvery: { keys: ['full_attention_interval'], otherwise: 4 },
  },
  names: { norm: 'input_layernorm' },
  mixer: {
    kind: 'delta',
    names: {
      ...linears,
      convs: ['linear_attn.conv1d'],
      rate: 'linear_attn.A_log',
      bias: 'linear_attn.dt_bias',
      norm: 'linear_attn.norm',
      output: 'linear_attn.out_proj',
    },
    keyHeads: ['linear_num_key_heads'],
    heads: ['linear_num_value_heads'],
    keyDim: ['linear_key_head_dim'],
    valueDim: ['linear_value_head_dim'],
    taps: { keys: ['linear_conv_kernel_dim'], otherwise: 4 },
    gateActivation: 'silu',
  },
  carried: { convolutions: CONVOLUTIONS_STAY, "a state's gates": GATES_STAY, "a state's parameters": STATES_STAY },
});

const sizes = {
  head_dim: 256,
  linear_num_key_heads: 16,
  linear_num_value_heads: 32,
  linear_key_head_dim: 128,
  linear_value_head_dim: 128,
};

/** Qwen3.5: gated delta nets and gated attention; norms add 1 to their weights. */
export const qwen35: Architecture = {
  ...llama,
  modelType: 'qwen3_5_text',
  className: 'Qwen3_5ForCausalLM',
  prediction: OWN_MODEL,
  defaults: { ...sizes, num_key_value_heads: 4 },
  only: { attn_output_gate: true, hidden_act: 'silu' },
  norm: { ...llama.norm, offset: 1 },
  recurrent: deltaNet({
    order: 'parts',
    qkv: 'linear_attn.in_proj_qkv',
    gate: 'linear_attn.in_proj_z',
    b: 'linear_attn.in_proj_b',
    a: 'linear_attn.in_proj_a',
  }),
  attention: {
    ...llama.attention,
    names: {
      ...llama.attention.names,
      qNorm: 'self_attn.q_norm',
      kNorm: 'self_attn.k_norm',
    } as typeof llama.attention.names,
    outputGate: true,
    rope: { style: 'half', theta: 10_000, partial: true, share: 0.25 },
  },
};

/** Qwen3.5-MoE: experts in every block, whose weights add up to 1, beside a gated one that every token goes through. */
export const qwen35Moe: Architecture = {
  ...qwen35,
  modelType: 'qwen3_5_moe_text',
  className: 'Qwen3_5MoeForCausalLM',
  defaults: { ...sizes, num_key_value_heads: 2, num_experts: 256, num_experts_per_tok: 8 },
  experts: {
    ...qwenExperts,
    shared: qwen2Moe.experts!.shared!,
    normalize: true,
    fused: [
      { tensor: 'mlp.experts.gate_up_proj', parts: ['gate', 'up'], stored: 'out-in' },
      { tensor: 'mlp.experts.down_proj', parts: ['down'], stored: 'out-in' },
    ],
    named: 'all',
  },
};

/** Qwen3-Next: the same, with rows of its linears by key head, and experts one by one. */
export const qwen3Next: Architecture = {
  ...qwen35,
  modelType: 'qwen3_next',
  className: 'Qwen3NextForCausalLM',
  defaults: { ...sizes, num_key_value_heads: 2, num_experts: 512, num_experts_per_tok: 10 },
  recurrent: deltaNet({ order: 'grouped', qkvGate: 'linear_attn.in_proj_qkvz', ba: 'linear_attn.in_proj_ba' }),
  experts: {
    ...qwenExperts,
    shared: qwen2Moe.experts!.shared!,
    normalize: { keys: ['norm_topk_prob'], otherwise: true },
  },
};
