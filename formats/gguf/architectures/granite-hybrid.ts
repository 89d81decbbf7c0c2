import type { GgufFacts } from '../source/facts.js';
import { ropeConfig } from '../source/rope.js';
import type { GgufArchitectures, Json, Shared } from './architecture.js';
import { multipliers } from './config.js';
import { kvHeads, mamba, sizesOf, types } from './hybrid.js';
import * as parts from './parts.js';

const shared = { outer: parts.LLAMA_OUTER, blocks: 'model.layers' } as const;

const GRANITE: parts.PartNames = {
  ...parts.interleaved(parts.LLAMA_BLOCK),
  ...mamba('mamba'),
  'ssm_dt.bias': 'mamba.dt_bias',
  'ssm_a.': { to: 'mamba.A_log', fix: 'column', minusExp: true },
  'ssm_d.': { to: 'mamba.D', fix: 'column' },
  ssm_norm: { to: 'mamba.norm', fix: 'groups' },
};

function granite(facts: GgufFacts, own: Shared): Json {
  const heads = facts.number('ssm.time_step_rank');
  return {
    ...sizesOf(facts, own),
    ...ropeConfig(facts, own.headDim),
    ...multipliers(facts),
    hidden_act: 'silu',
    attention_bias: false,
    num_key_value_heads: kvHeads(facts, own),
    layer_types: types(facts, own, 'mamba', 'attention'),
    position_embedding_type: (facts.flag('rope.scaling.finetuned') ?? true) ? 'rope' : 'nope',
    mamba_n_heads: heads,
    mamba_d_head: facts.number('ssm.inner_size') / heads,
    mamba_d_state: facts.number('ssm.state_size'),
    mamba_n_groups: facts.number('ssm.group_count'),
    mamba_d_conv: facts.number('ssm.conv_kernel'),
    mamba_expand: facts.number('ssm.inner_size') / own.hidden,
    mamba_conv_bias: true,
    mamba_proj_bias: false,
  };
}

/** Granite 4, with experts and without. */
export const GRANITE_HYBRID: GgufArchitectures = {
  granitemoehybrid: {
    ...shared,
    name: 'granitehybrid',
    className: 'GraniteMoeHybridForCausalLM',
    withExperts: 'granitemoehybrid with experts',
    block: {
      ...GRANITE,
      ...parts.parted('ffn_gate', 'ffn_up', 'shared_mlp.input_linear'),
      ffn_down: 'shared_mlp.output_linear',
    },
    config: (facts, own) => ({
      ...granite(facts, own),
      num_local_experts: 0,
      num_experts_per_tok: 0,
      intermediate_size: facts.number('feed_forward_length'),
      shared_intermediate_size: facts.number('feed_forward_length'),
    }),
  },
  'granitemoehybrid with experts': {
    ...shared,
    name: 'granitehybrid',
    className: 'GraniteMoeHybridForCausalLM',
    is: (facts) => (facts.optional('expert_count') ?? 0) > 0,
    block: {
      ...GRANITE,
      ...parts.experts('block_sparse_moe.router.layer', parts.gated('block_sparse_moe.experts.{expert}')),
      ...parts.parted('ffn_gate_shexp', 'ffn_up_shexp', 'shared_mlp.input_linear'),
      ffn_down_shexp: 'shared_mlp.output_linear',
    },
    config: (facts, own) => ({
      ...granite(facts, own),
      num_local_experts: facts.number('expert_count'),
      num_experts_per_tok: facts.number('expert_used_count'),
      intermediate_size: facts.number('feed_forward_length'),
      shared_intermediate_size: facts.number('expert_shared_feed_forward_length'),
    }),
  },
};
