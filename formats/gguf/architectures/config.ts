import type { GgufFacts } from '../source/facts.js';
import { badGguf } from '../source/file.js';
import { ropeConfig } from '../source/rope.js';
import type { Json, Shared } from './architecture.js';

// Groups of keys of config.json that families share, made of the metadata of a file.

export const rms = (facts: GgufFacts): Json => ({
  rms_norm_eps: facts.number('attention.layer_norm_rms_epsilon'),
});

export const layerNorm = (facts: GgufFacts): number => facts.number('attention.layer_norm_epsilon');

/** Sizes as Llama's config.json names them. */
export function sizes(facts: GgufFacts, { hidden, heads, headDim, layers }: Shared): Json {
  return {
    hidden_size: hidden,
    intermediate_size: facts.number('feed_forward_length'),
    num_hidden_layers: layers,
    num_attention_heads: heads,
    num_key_value_heads: facts.isList('attention.head_count_kv')
      ? Math.max(...facts.each('attention.head_count_kv', layers))
      : (facts.optional('attention.head_count_kv') ?? heads),
    head_dim: headDim,
    max_position_embeddings: facts.number('context_length'),
  };
}

/** Part of a head that is rotated. */
export const partial = (facts: GgufFacts, headDim: number): number =>
  (facts.optional('rope.dimension_count') ?? headDim) / headDim;

export function likeLlama(facts: GgufFacts, shared: Shared, theta?: number): Json {
  return { ...sizes(facts, shared), ...rms(facts), ...ropeConfig(facts, shared.headDim, theta), hidden_act: 'silu' };
}

/** Models that rotate a part of each head. */
export function partly(facts: GgufFacts, shared: Shared): Json {
  const rotary = facts.optional('rope.dimension_count') ?? shared.headDim;
  return { ...ropeConfig(facts, rotary), partial_rotary_factor: partial(facts, shared.headDim) };
}

export const llamaBiases = (facts: GgufFacts): Json => ({
  attention_bias: facts.has('blk.0.attn_q.bias'),
  mlp_bias: facts.has('blk.0.ffn_up.bias'),
});

/** Which blocks have a window: as the file lists them, or all but every so-many-th, by the file's word or `usual`. */
export function windows(facts: GgufFacts, { layers }: Shared, usual: number): Json {
  const size = facts.optional('attention.sliding_window');
  if (!size) return { sliding_window: null };
  const key = 'attention.sliding_window_pattern';
  const listed = facts.isList(key) ? facts.list<boolean>(key, 'boolean') : undefined;
  const every = listed ? usual : (facts.optional(key) ?? usual);
  if (listed && listed.length < layers) badGguf(facts.file.path, `'${key}' does not say what every block is`);
  const types = Array.from({ length: layers }, (_, i) =>
    (listed ? listed[i] : (i + 1) % every !== 0) ? 'sliding_attention' : 'full_attention',
  );
  return { sliding_window: size, layer_types: types };
}

/** The same where blocks with a window and those without rotate differently. */
export function twoRopes(facts: GgufFacts, { headDim }: Shared, theta: number, local: number): Json {
  const { rope_theta, rope_scaling } = ropeConfig(facts, headDim, theta);
  return {
    rope_parameters: {
      full_attention: { rope_type: 'default', ...(rope_scaling as Json | undefined), rope_theta },
      sliding_attention: { rope_type: 'default', rope_theta: facts.optional('rope.freq_base_swa') ?? local },
    },
  };
}

/** Rows of per-layer embeddings; those of the vocabulary where there are none. */
export const perLayerRows = (facts: GgufFacts): number | undefined =>
  facts.optional('lpq.per_layer_rows') ??
  facts.shape(facts.has('per_layer_token_embd.weight') ? 'per_layer_token_embd.weight' : 'token_embd.weight')[0];

/** Experts as Qwen's config.json has them. */
export function mixture(facts: GgufFacts, normalized: boolean): Json {
  return {
    num_experts: facts.number('expert_count'),
    num_experts_per_tok: facts.number('expert_used_count'),
    moe_intermediate_size:
      facts.optional('expert_feed_forward_length') ?? (facts.shape('blk.0.ffn_gate_exps.weight')[1] as number),
    norm_topk_prob: normalized,
    decoder_sparse_step: 1,
    mlp_only_layers: [],
  };
}

/** Experts as DeepSeek's config.json has them. */
export function sharedMixture(facts: GgufFacts): Json {
  return {
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

/** Granite's four. */
export function multipliers(facts: GgufFacts): Json {
  return {
    ...rms(facts),
    attention_multiplier: facts.optional('attention.scale') ?? 1,
    embedding_multiplier: facts.optional('embedding_scale') ?? 1,
    residual_multiplier: facts.optional('residual_scale') ?? 1,
    logits_scaling: facts.optional('logit_scale') ?? 1,
  };
}
