import type { Config } from './config.js';

interface Range {
  readonly least: number;
  readonly most: number;
  /** `least` itself is none. */
  readonly open?: boolean;
  readonly integer?: boolean;
}

/** Sizes: no model has 2^31 of anything, and products of two of them stay exact. */
const MOST = 2 ** 31 - 1;
const SIZE: Range = { least: 1, most: MOST, integer: true };
const COUNT: Range = { least: 0, most: MOST, integer: true };
const EPSILON: Range = { least: 0, most: 1, open: true };
const SHARE: Range = { least: 0, most: 1, open: true };
const FACTOR: Range = { least: 0, most: 1e6, open: true };
const THETA: Range = { least: 1, most: 1e15, open: true };

/**
 * What numbers of config.json may be, whatever class reads them and whether or not this model's does: a file with such a number was damaged
 * or made up, and whoever serves the output will read it.
 */
const RANGES: Readonly<Record<string, Range>> = {
  ...all(SIZE, 'hidden_size n_embd d_model intermediate_size n_inner ffn_dim vocab_size word_embed_proj_dim'),
  ...all(SIZE, 'num_hidden_layers n_layer num_layers num_attention_heads n_head num_key_value_heads head_dim'),
  ...all(SIZE, 'max_position_embeddings n_positions n_ctx original_max_position_embeddings'),
  ...all(SIZE, 'kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim moe_intermediate_size'),
  ...all(SIZE, 'top_k_experts global_head_dim num_global_key_value_heads vocab_size_per_layer_input'),
  ...all(COUNT, 'hidden_size_per_layer_input num_kv_shared_layers'),
  ...all(SIZE, 'moe_num_experts moe_k intermediate_size_mlp attention_chunk_size'),
  ...all(SIZE, 'num_experts_per_token n_group topk_group decoder_sparse_step moe_layer_freq'),
  ...all(SIZE, 'mamba_n_heads mamba_num_heads mamba_head_dim mamba_d_state ssm_state_size mamba_n_groups mamba_d_ssm'),
  ...all(COUNT, 'sliding_window max_window_layers sliding_window_pattern _sliding_window_pattern num_experts'),
  ...all(COUNT, 'n_routed_experts num_local_experts n_shared_experts first_k_dense_replace'),
  ...all(COUNT, 'shared_expert_intermediate_size num_experts_per_tok'),
  ...all(EPSILON, 'rms_norm_eps layer_norm_eps layer_norm_epsilon norm_epsilon norm_eps'),
  ...all(SHARE, 'partial_rotary_factor rotary_pct'),
  ...all(THETA, 'rope_theta rotary_emb_base rope_local_base_freq'),
  ...all(FACTOR, 'query_pre_attn_scalar logits_scaling routed_scaling_factor swiglu_limit swiglu_alpha'),
  ...all(FACTOR, 'embedding_multiplier residual_multiplier attention_multiplier logit_scale'),
  ...all({ least: 0, most: 1e6 }, 'final_logit_softcapping attn_logit_softcapping'),
};

/** The same for what rope_parameters and rope_scaling hold. */
const ROPE_RANGES: Readonly<Record<string, Range>> = {
  ...all(THETA, 'rope_theta'),
  ...all(SHARE, 'partial_rotary_factor'),
  ...all(SIZE, 'original_max_position_embeddings'),
  ...all(
    FACTOR,
    'factor attention_factor beta_fast beta_slow low_freq_factor high_freq_factor short_mscale long_mscale',
  ),
  ...all({ least: 0, most: 1e6 }, 'mscale mscale_all_dim'),
};

/** Throws LPQ_CONFIG naming the first number that is out of its range. What is no number is told of where it is read. */
export function requireRanges(config: Config): void {
  check(config, RANGES);
  for (const key of ['rope_parameters', 'rope_scaling']) {
    if (!isObject(config.raw[key])) continue;
    const parameters = config.object(key) as Config;
    check(parameters, ROPE_RANGES);
    // By kind of layer, as models with windows write them.
    for (const [kind, value] of Object.entries(parameters.raw))
      if (isObject(value)) check(parameters.object(kind) as Config, ROPE_RANGES);
  }
}

function check(config: Config, ranges: Readonly<Record<string, Range>>): void {
  for (const [key, range] of Object.entries(ranges)) {
    const value = config.raw[key];
    if (typeof value !== 'number') continue;
    const { least, most, open, integer } = range;
    if ((open ? value > least : value >= least) && value <= most && (!integer || Number.isInteger(value))) continue;
    throw config.error(key, 'is out of range', value, words(range));
  }
}

function words({ least, most, open, integer }: Range): string {
  return `${integer ? 'an integer' : 'a number'} ${open ? `above ${least}, at most ${most}` : `from ${least} to ${most}`}`;
}

function isObject(value: unknown): boolean {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function all(range: Range, names: string): Record<string, Range> {
  return Object.fromEntries(names.split(' ').map((name) => [name, range]));
}
