import type { GgufFacts } from '../source/facts.js';
import type { GgufArchitectures, Json, Shared } from './architecture.js';
import { likeLlama, mixture, partly } from './config.js';
import * as parts from './parts.js';

const shared = { outer: parts.LLAMA_OUTER, blocks: 'model.layers' } as const;

/** Qwen3.5's gated delta rule. */
const DELTA: parts.PartNames = {
  attn_qkv: { to: 'linear_attn.in_proj_qkv', states: 'behind' },
  attn_gate: { to: 'linear_attn.in_proj_z', states: 'rows' },
  ssm_beta: { to: 'linear_attn.in_proj_b', states: 'rows' },
  ssm_alpha: { to: 'linear_attn.in_proj_a', states: 'rows' },
  ssm_conv1d: { to: 'linear_attn.conv1d', fix: 'squeezed', states: 'behind' },
  'ssm_dt.bias': { to: 'linear_attn.dt_bias', states: 'rows' },
  'ssm_a.': { to: 'linear_attn.A_log', minusExp: true, states: 'rows' },
  ssm_norm: { to: 'linear_attn.norm', plain: true },
  ssm_out: { to: 'linear_attn.out_proj', states: 'columns' },
};

/** Qwen3-Next and Qwen3.5 without experts. */
function delta(facts: GgufFacts, own: Shared): Json {
  const heads = facts.number('ssm.time_step_rank');
  const every = facts.optional('full_attention_interval') ?? 4;
  const listed = facts.list<boolean>('attention.recurrent_layers', 'boolean');
  return {
    ...likeLlama(facts, own),
    ...partly(facts, own),
    attention_bias: false,
    linear_conv_kernel_dim: facts.number('ssm.conv_kernel'),
    linear_key_head_dim: facts.number('ssm.state_size'),
    linear_num_key_heads: facts.number('ssm.group_count'),
    linear_num_value_heads: heads,
    linear_value_head_dim: facts.number('ssm.inner_size') / heads,
    layer_types: Array.from({ length: own.layers }, (_, i) =>
      (listed ? listed[i] : (i + 1) % every !== 0) ? 'linear_attention' : 'full_attention',
    ),
  };
}

const deltaMixture = (facts: GgufFacts): Json => ({
  ...mixture(facts, true),
  shared_expert_intermediate_size: facts.number('expert_shared_feed_forward_length'),
});

/** Models with linear attention by the gated delta rule. */
export const DELTA_RULE: GgufArchitectures = {
  qwen3_next: {
    ...shared,
    name: 'qwen3next',
    className: 'Qwen3NextForCausalLM',
    normsPlusOne: true,
    block: {
      ...parts.postNormed(parts.QWEN2_MOE_BLOCK),
      ssm_in: 'linear_attn.in_proj_qkvz',
      ssm_ba: 'linear_attn.in_proj_ba',
      ssm_conv1d: { to: 'linear_attn.conv1d', fix: 'squeezed' },
      'ssm_dt.bias': 'linear_attn.dt_bias',
      'ssm_a.': { to: 'linear_attn.A_log', minusExp: true },
      ssm_norm: { to: 'linear_attn.norm', plain: true },
      ssm_out: 'linear_attn.out_proj',
    },
    config: (facts, own) => ({ ...delta(facts, own), ...deltaMixture(facts) }),
  },
  qwen3_5_text: {
    ...shared,
    name: 'qwen35',
    className: 'Qwen3_5ForCausalLM',
    normsPlusOne: true,
    block: { ...parts.postNormed(parts.LLAMA_BLOCK), ...DELTA },
    config: delta,
  },
  qwen3_5_moe_text: {
    ...shared,
    name: 'qwen35moe',
    className: 'Qwen3_5MoeForCausalLM',
    normsPlusOne: true,
    block: { ...parts.postNormed(parts.QWEN2_MOE_BLOCK), ...DELTA },
    config: (facts, own) => ({ ...delta(facts, own), ...deltaMixture(facts) }),
  },
};
