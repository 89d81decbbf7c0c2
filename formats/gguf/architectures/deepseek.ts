import type { GgufFacts } from '../source/facts.js';
import { ropeConfig } from '../source/rope.js';
import type { GgufArchitectures, Json, Shared } from './architecture.js';
import { sharedMixture } from './config.js';
import * as parts from './parts.js';

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
    q_lora_rank: facts.optional('attention.q_lora_rank') || null,
    kv_lora_rank: facts.number('attention.kv_lora_rank'),
    qk_nope_head_dim: keys - rotary,
    qk_rope_head_dim: rotary,
    v_head_dim: facts.optional('attention.value_length_mla') ?? facts.number('attention.value_length'),
    ...sharedMixture(facts),
  };
}

const shared = {
  outer: parts.LLAMA_OUTER,
  blocks: 'model.layers',
  block: parts.DEEPSEEK_BLOCK,
  latent: 'self_attn.kv_b_proj',
  name: 'deepseek2',
} as const;

const sigmoids = (facts: GgufFacts): boolean => facts.optional('expert_gating_func') === SIGMOID;

/** DeepSeek-V2 and, with shares that are sigmoids, V3, R1, Kimi K2 and GLM-4.7-Flash. */
export const DEEPSEEK: GgufArchitectures = {
  deepseek_v2: {
    ...shared,
    className: 'DeepseekV2ForCausalLM',
    config: (facts, sizes) => {
      const own = latent(facts, sizes);
      return { ...own, topk_method: (own.n_group as number) > 1 ? 'group_limited_greedy' : 'greedy' };
    },
  },
  deepseek_v3: { ...shared, className: 'DeepseekV3ForCausalLM', is: sigmoids, config: latent },
  kimi_k2: { ...shared, className: 'DeepseekV3ForCausalLM', is: () => false, config: latent },
  glm4_moe_lite: { ...shared, className: 'Glm4MoeLiteForCausalLM', is: () => false, config: latent },
};
