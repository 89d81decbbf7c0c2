/** A random model that llama.cpp runs. */
export interface GgufRow {
  /** Of test/fixtures/architectures; called as the row is unless it says so. */
  readonly fixture?: string;
  /** Settings that the fixture has otherwise, because llama.cpp computes no others; and kin of it. */
  readonly config?: Readonly<Record<string, unknown>>;
  /** llama.cpp looks its GELU up in a table of f16, or computes flash attention, which rounds to it. */
  readonly halves?: true;
  /** llama.cpp computes flash attention, which it chooses keys by indexers in. */
  readonly flash?: true;
  /** As many as the bound of a logprob is for; 4 or fewer unless it says so. */
  readonly blocks?: number;
  /** Part of the tier of every commit. */
  readonly commit?: true;
}

const HALVES = { halves: true } as const;
/** Those that are written with the settings of their fixtures. */
const PLAIN = [
  ...['llama3-rope', 'llama-yarn-bias', 'mixtral', 'qwen2', 'qwen2_moe', 'qwen3', 'qwen3_moe'],
  ...['phi3', 'olmo2', 'olmo3', 'granite', 'glm4', 'cohere', 'stablelm', 'nemotron', 'hunyuan_v1_dense', 'ministral3'],
  ...['granitemoe', 'glm4_moe', 'minimax_m2', 'hunyuan_v1_moe', 'ernie4_5_moe', 'exaone_moe', 'glm4_moe_lite'],
  ...['gpt_oss', 'apertus', 'hy_v3', 'mimo_v2_flash', 'lfm2_moe', 'qwen3_next', 'granitemoehybrid', 'jamba'],
  ...['qwen3_5_moe', 'kimi_k25'],
];
const PLAIN_GELU = ['gemma', 'gemma2', 'gemma3_text', 'gemma4_moe', 'starcoder2', 'gpt2', 'gpt_neox'];
const [OWN_KEYS, FULL] = [{ num_key_value_heads: 4 }, { sliding_window: null, layer_types: null }];
const PADDED = { vocab_size_per_layer_input: 319 };
/** Parts of a head that turn by time, height and width. */
const AXES = { rope_type: 'default', rope_theta: 10_000, mrope_section: [11, 11, 11] };
/**
 * As many blocks as show which of them cut gates, and which read the keys and values of blocks 18 and 19. llama.cpp's deviation of n gates is
 * 1 + 1 / 2n of the class's: with 2048, that is about as far off as its table of GELU.
 */
const GEMMA_3N = {
  ...{ num_hidden_layers: 25, num_kv_shared_layers: 5, altup_num_inputs: 4, laurel_rank: 64, ...PADDED },
  ...{ hidden_size: 64, hidden_size_per_layer_input: 256, intermediate_size: 2048, head_dim: 32 },
  activation_sparsity_pattern: Array.from({ length: 25 }, (_, i) => (i < 10 ? 0.95 : 0)),
  layer_types: Array.from({ length: 25 }, (_, i) => (i % 5 < 4 ? 'sliding_attention' : 'full_attention')),
};

const MINIMAX_M3 = { swiglu_limit: 7, index_block_size: 128, index_topk_blocks: 16 };

/** Architectures of llama.cpp, by the names of their cells. */
export const GGUF_MODELS: Readonly<Record<string, GgufRow>> = {
  ...Object.fromEntries(PLAIN.map((name) => [name, {}])),
  ...Object.fromEntries(PLAIN_GELU.map((name) => [name, HALVES])),
  deepseek_v3: { commit: true },
  arcee: { config: { mlp_bias: false } },
  ernie4_5: { config: { use_bias: false } },
  seed_oss: { config: { attention_out_bias: false } },
  olmoe: { config: OWN_KEYS },
  dots1: { config: { ...OWN_KEYS, ...FULL } },
  smollm3: {
    config: {
      ...{ num_hidden_layers: 4, no_rope_layers: [1, 1, 1, 0], no_rope_layer_interval: 4, use_sliding_window: false },
    },
  },
  exaone4: { config: { ...FULL, sliding_window_pattern: null } },
  cohere2: { fixture: 'cohere', config: { model_type: 'cohere2', sliding_window: 8, sliding_window_pattern: 2 } },
  llama4_text: {
    config: {
      ...{ num_hidden_layers: 4, no_rope_layers: [1, 1, 1, 0], moe_layers: [1, 3], layer_types: null },
      ...{ attention_chunk_size: 8192, attn_scale: 0.1, floor_scale: 8192, interleave_moe_layer_step: 2 },
    },
  },
  lfm2: { config: { conv_bias: false } },
  'granitemoehybrid, no experts': {
    fixture: 'granitemoehybrid-dense',
    config: { mamba_conv_bias: true, mamba_n_groups: 1, num_hidden_layers: 2, layer_types: ['mamba', 'attention'] },
  },
  qwen3_5_text: { config: { linear_key_head_dim: 64 } },
  nemotron_h: { config: { num_hidden_layers: 4, hybrid_override_pattern: 'M*-M' } },
  nemotron_h_moe: { fixture: 'nemotron_h', config: { num_hidden_layers: 4, hybrid_override_pattern: 'ME*E' } },
  'nemotron_h_moe, latent': {
    fixture: 'nemotron_h-latent',
    config: { mlp_hidden_act: 'relu2', time_step_min: 0.001 },
  },
  gemma3: { ...HALVES, commit: true },
  gemma3n_text: { ...HALVES, blocks: 25, config: GEMMA_3N },
  minimax_m3: { fixture: 'minimax_m3_vl_text', config: MINIMAX_M3 },
  'minimax_m3, runs of 4 keys': {
    ...{ fixture: 'minimax_m3_vl_text', flash: true, ...HALVES },
    config: { ...MINIMAX_M3, index_block_size: 4, index_topk_blocks: 2 },
  },
  gemma4_text: { ...HALVES, config: { vocab_size_per_layer_input: 320 } },
  gemma4: { ...HALVES, config: PADDED },
  mistral3: { config: { sliding_window: null } },
  qwen2_5_vl: { config: { rope_scaling: { mrope_section: [16, 8, 8], type: 'mrope' } } },
  glm4v: { config: { rope_parameters: { ...AXES, mrope_section: [4, 4, 8], partial_rotary_factor: 0.5 } } },
  qwen3_vl: { config: { rope_parameters: AXES } },
  qwen3_vl_moe: { config: { rope_parameters: AXES, mlp_only_layers: [] } },
  deepseek_v2: {
    fixture: 'deepseek_v3',
    config: {
      ...{ model_type: 'deepseek_v2', q_lora_rank: null, n_group: 1, topk_method: 'greedy' },
      scoring_func: 'softmax',
    },
  },
};
