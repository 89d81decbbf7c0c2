/** Small configs, as transformers 5 writes them, one of each architecture. */
const common = {
  hidden_size: 64,
  intermediate_size: 96,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  num_hidden_layers: 4,
  vocab_size: 100,
  max_position_embeddings: 256,
  rms_norm_eps: 1e-5,
  hidden_act: 'silu',
  tie_word_embeddings: false,
  rope_parameters: { rope_type: 'default', rope_theta: 10_000 },
} as const;

export const CONFIGS: Record<string, Record<string, unknown>> = {
  llama: { ...common, model_type: 'llama', architectures: ['LlamaForCausalLM'] },
  mistral: { ...common, model_type: 'mistral', architectures: ['MistralForCausalLM'], sliding_window: 8 },
  qwen2: { ...common, model_type: 'qwen2', architectures: ['Qwen2ForCausalLM'] },
  qwen3: { ...common, model_type: 'qwen3', architectures: ['Qwen3ForCausalLM'], head_dim: 32 },
  qwen3_moe: {
    ...common,
    model_type: 'qwen3_moe',
    architectures: ['Qwen3MoeForCausalLM'],
    head_dim: 32,
    num_experts: 8,
    num_experts_per_tok: 2,
    moe_intermediate_size: 48,
    norm_topk_prob: true,
  },
};
