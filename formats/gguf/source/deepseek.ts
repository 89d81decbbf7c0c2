import type { Shared, SourceArchitecture } from './architectures.js';
import type { GgufFacts } from './facts.js';
import * as names from './names.js';
import { ropeConfig } from './rope.js';

type Json = Readonly<Record<string, unknown>>;

/** What llama.cpp calls a share of experts that is a sigmoid; 1, or nothing, is softmax. */
const SIGMOID = 2;

/** YaRN's term of attention is written as a tenth of mscale_all_dim; published models have mscale alike, so that cos and sin keep their size. */
function rope(facts: GgufFacts, rotary: number): Json {
  const { rope_scaling, ...rest } = ropeConfig(facts, rotary);
  const log = facts.optional('rope.scaling.yarn_log_multiplier');
  if (rope_scaling === undefined) return rest;
  const mscale = log === undefined ? {} : { mscale: tenfold(log), mscale_all_dim: tenfold(log) };
  return { ...rest, rope_scaling: { ...(rope_scaling as Json), ...mscale } };
}

const tenfold = (value: number): number => Number((value * 10).toPrecision(6));

/**
 * Sizes of latent attention and of the experts. Files of before April 2025 have keys and values of heads where later ones have those of
 * the latent vector, and of heads under keys of their own.
 */
function latent(facts: GgufFacts, { hidden, heads, layers }: Shared): Json {
  const rotary = facts.number('rope.dimension_count');
  const keys = facts.optional('attention.key_length_mla') ?? facts.number('attention.key_length');
  return {
    hidden_size: hidden,
    intermediate_size: facts.number('feed_forward_length'),
    num_hidden_layers: layers,
    num_attention_heads: heads,
    num_key_value_heads: heads,
    max_position_embeddings: facts.number('context_length'),
    rms_norm_eps: facts.number('attention.layer_norm_rms_epsilon'),
    ...rope(facts, rotary),
    hidden_act: 'silu',
    attention_bias: facts.has('blk.0.attn_q_a.bias'),
    q_lora_rank: facts.optional('attention.q_lora_rank') ?? null,
    kv_lora_rank: facts.number('attention.kv_lora_rank'),
    qk_nope_head_dim: keys - rotary,
    qk_rope_head_dim: rotary,
    v_head_dim: facts.optional('attention.value_length_mla') ?? facts.number('attention.value_length'),
    first_k_dense_replace: facts.optional('leading_dense_block_count') ?? 0,
    n_routed_experts: facts.number('expert_count'),
    num_experts_per_tok: facts.number('expert_used_count'),
    n_shared_experts: facts.optional('expert_shared_count') ?? 0,
    moe_intermediate_size: facts.number('expert_feed_forward_length'),
    routed_scaling_factor: facts.optional('expert_weights_scale') ?? 1,
    norm_topk_prob: facts.flag('expert_weights_norm') ?? false,
    n_group: facts.optional('expert_group_count') ?? 1,
    topk_group: facts.optional('expert_group_used_count') ?? 1,
  };
}

const shared = {
  outer: names.LLAMA_OUTER,
  blocks: 'model.layers',
  block: names.DEEPSEEK_BLOCK,
  latent: 'self_attn.kv_b_proj',
} as const;

/** DeepSeek-V2 and, with shares that are sigmoids, V3, R1 and Kimi K2. */
export const DEEPSEEK: Readonly<Record<string, SourceArchitecture>> = {
  deepseek2: {
    ...shared,
    model: ['deepseek_v2', 'DeepseekV2ForCausalLM'],
    variant: (facts) => (facts.optional('expert_gating_func') === SIGMOID ? 'deepseek2 with sigmoids' : undefined),
    config: (facts, sizes) => {
      const own = latent(facts, sizes);
      return { ...own, topk_method: (own.n_group as number) > 1 ? 'group_limited_greedy' : 'greedy' };
    },
  },
  'deepseek2 with sigmoids': {
    ...shared,
    model: ['deepseek_v3', 'DeepseekV3ForCausalLM'],
    config: latent,
  },
};
