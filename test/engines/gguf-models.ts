/** Architectures of llama.cpp, by fixture. */
const GGUF_KINDS = [
  ...['llama3-rope', 'llama-yarn-bias', 'mixtral', 'qwen2', 'qwen2_moe', 'qwen3', 'qwen3_moe', 'gemma', 'gemma2'],
  ...['gemma3_text', 'phi3', 'olmo2', 'olmo3', 'granite', 'glm4', 'cohere', 'starcoder2', 'gpt2', 'gpt_neox'],
  ...['stablelm', 'nemotron', 'hunyuan_v1_dense', 'ministral3', 'granitemoe', 'glm4_moe', 'minimax_m2'],
  ...['hunyuan_v1_moe', 'ernie4_5_moe', 'exaone_moe', 'deepseek_v3', 'glm4_moe_lite', 'gpt_oss'],
];
const [OWN_KEYS, FULL] = [{ num_key_value_heads: 4 }, { sliding_window: null, layer_types: null }];
/** Parts of a head that turn by time, height and width. */
const AXES = { rope_type: 'default', rope_theta: 10_000, mrope_section: [11, 11, 11] };
/** Those that are written with other settings than their fixtures have, because llama.cpp computes no others; and kin of them. */
export const GGUF_MODELS: Readonly<Record<string, readonly [kind: string, config: Readonly<Record<string, unknown>>]>> =
  {
    ...Object.fromEntries(GGUF_KINDS.map((kind) => [kind, [kind, {}]])),
    apertus: ['apertus', {}],
    arcee: ['arcee', { mlp_bias: false }],
    ernie4_5: ['ernie4_5', { use_bias: false }],
    seed_oss: ['seed_oss', { attention_out_bias: false }],
    olmoe: ['olmoe', OWN_KEYS],
    dots1: ['dots1', { ...OWN_KEYS, ...FULL }],
    smollm3: [
      'smollm3',
      { num_hidden_layers: 4, no_rope_layers: [1, 1, 1, 0], no_rope_layer_interval: 4, use_sliding_window: false },
    ],
    exaone4: ['exaone4', { ...FULL, sliding_window_pattern: null }],
    cohere2: ['cohere', { model_type: 'cohere2', sliding_window: 8, sliding_window_pattern: 2 }],
    hy_v3: ['hy_v3', {}],
    mimo_v2_flash: ['mimo_v2_flash', {}],
    llama4_text: [
      'llama4_text',
      {
        ...{ num_hidden_layers: 4, no_rope_layers: [1, 1, 1, 0], moe_layers: [1, 3], layer_types: null },
        ...{ attention_chunk_size: 8192, attn_scale: 0.1, floor_scale: 8192, interleave_moe_layer_step: 2 },
      },
    ],
    lfm2: ['lfm2', { conv_bias: false }],
    lfm2_moe: ['lfm2_moe', {}],
    qwen3_next: ['qwen3_next', {}],
    granitemoehybrid: ['granitemoehybrid', {}],
    'granitemoehybrid, no experts': [
      'granitemoehybrid-dense',
      { mamba_conv_bias: true, mamba_n_groups: 1, num_hidden_layers: 2, layer_types: ['mamba', 'attention'] },
    ],
    jamba: ['jamba', {}],
    qwen3_5_text: ['qwen3_5_text', { linear_key_head_dim: 64 }],
    qwen3_5_moe: ['qwen3_5_moe', {}],
    nemotron_h: ['nemotron_h', { num_hidden_layers: 4, hybrid_override_pattern: 'M*-M' }],
    nemotron_h_moe: ['nemotron_h', { num_hidden_layers: 4, hybrid_override_pattern: 'ME*E' }],
    'nemotron_h_moe, latent': ['nemotron_h-latent', { mlp_hidden_act: 'relu2', time_step_min: 0.001 }],
    gemma3: ['gemma3', {}],
    gemma4_text: ['gemma4_text', { vocab_size_per_layer_input: 320 }],
    gemma4_moe: ['gemma4_moe', {}],
    gemma4: ['gemma4', { vocab_size_per_layer_input: 320 }],
    mistral3: ['mistral3', { sliding_window: null }],
    kimi_k25: ['kimi_k25', {}],
    qwen2_5_vl: ['qwen2_5_vl', { rope_scaling: { mrope_section: [16, 8, 8], type: 'mrope' } }],
    glm4v: ['glm4v', { rope_parameters: { ...AXES, mrope_section: [4, 4, 8], partial_rotary_factor: 0.5 } }],
    qwen3_vl: ['qwen3_vl', { rope_parameters: AXES }],
    qwen3_vl_moe: ['qwen3_vl_moe', { rope_parameters: AXES, mlp_only_layers: [] }],
    deepseek_v2: [
      'deepseek_v3',
      { model_type: 'deepseek_v2', q_lora_rank: null, n_group: 1, topk_method: 'greedy', scoring_func: 'softmax' },
    ],
  };
