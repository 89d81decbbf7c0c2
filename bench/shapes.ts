import path from 'node:path';
import { readJson } from '../formats/directory/read-file.js';
import { LpqError, notTaken } from '../src/core/error.js';
import { architectureOf } from '../src/model/architectures/index.js';
import { planModel } from '../src/model/plan.js';

type ModelConfig = Readonly<Record<string, unknown>>;

const llama3: ModelConfig = {
  architectures: ['LlamaForCausalLM'],
  model_type: 'llama',
  hidden_act: 'silu',
  vocab_size: 128256,
  bos_token_id: 128000,
  eos_token_id: 128001,
  max_position_embeddings: 8192,
  rms_norm_eps: 1e-5,
  rope_theta: 500000,
  attention_bias: false,
  mlp_bias: false,
  tie_word_embeddings: false,
  torch_dtype: 'bfloat16',
};

const qwen3: ModelConfig = {
  architectures: ['Qwen3ForCausalLM'],
  model_type: 'qwen3',
  hidden_act: 'silu',
  head_dim: 128,
  vocab_size: 151936,
  bos_token_id: 151643,
  eos_token_id: 151645,
  max_position_embeddings: 40960,
  rms_norm_eps: 1e-6,
  rope_theta: 1000000,
  attention_bias: false,
  use_sliding_window: false,
  tie_word_embeddings: false,
  torch_dtype: 'bfloat16',
};

const moe: ModelConfig = {
  ...qwen3,
  architectures: ['Qwen3MoeForCausalLM'],
  model_type: 'qwen3_moe',
  norm_topk_prob: true,
  decoder_sparse_step: 1,
  mlp_only_layers: [],
};

/** hidden, intermediate, blocks, heads, key and value heads. */
function sizes(hidden: number, intermediate: number, blocks: number, heads: number, kvHeads: number): ModelConfig {
  return {
    hidden_size: hidden,
    intermediate_size: intermediate,
    num_hidden_layers: blocks,
    num_attention_heads: heads,
    num_key_value_heads: kvHeads,
  };
}

const GPT_OSS_20B: ModelConfig = {
  architectures: ['GptOssForCausalLM'],
  model_type: 'gpt_oss',
  hidden_act: 'silu',
  ...sizes(2880, 2880, 24, 64, 8),
  head_dim: 64,
  num_local_experts: 32,
  num_experts_per_tok: 4,
  attention_bias: true,
  sliding_window: 128,
  layer_types: Array.from({ length: 24 }, (_, i) => (i % 2 === 0 ? 'sliding_attention' : 'full_attention')),
  max_position_embeddings: 131072,
  rms_norm_eps: 1e-5,
  rope_theta: 150000,
  rope_scaling: {
    ...{ rope_type: 'yarn', factor: 32, beta_fast: 32, beta_slow: 1, truncate: false },
    original_max_position_embeddings: 4096,
  },
  swiglu_limit: 7,
  tie_word_embeddings: false,
  vocab_size: 201088,
  bos_token_id: 199998,
  eos_token_id: 200002,
  torch_dtype: 'bfloat16',
};

const DEEPSEEK_V2_LITE: ModelConfig = {
  architectures: ['DeepseekV2ForCausalLM'],
  model_type: 'deepseek_v2',
  hidden_act: 'silu',
  ...sizes(2048, 10944, 27, 16, 16),
  ...{ q_lora_rank: null, kv_lora_rank: 512, qk_nope_head_dim: 128, qk_rope_head_dim: 64, v_head_dim: 128 },
  ...{ moe_intermediate_size: 1408, n_routed_experts: 64, n_shared_experts: 2, num_experts_per_tok: 6 },
  ...{ first_k_dense_replace: 1, moe_layer_freq: 1, n_group: 1, topk_group: 1, topk_method: 'greedy' },
  ...{ scoring_func: 'softmax', norm_topk_prob: false, routed_scaling_factor: 1 },
  attention_bias: false,
  max_position_embeddings: 163840,
  rms_norm_eps: 1e-6,
  rope_theta: 10000,
  rope_scaling: {
    ...{ type: 'yarn', factor: 40, beta_fast: 32, beta_slow: 1 },
    // biome-ignore lint/suspicious/noApproximativeNumericConstant: as config.json has it.
    ...{ mscale: 0.707, mscale_all_dim: 0.707 },
    original_max_position_embeddings: 4096,
  },
  tie_word_embeddings: false,
  vocab_size: 102400,
  bos_token_id: 100000,
  eos_token_id: 100001,
  torch_dtype: 'bfloat16',
};

/** GPT-OSS as it is published: experts in MXFP4. */
const MXFP4: ModelConfig = {
  quantization_config: {
    quant_method: 'mxfp4',
    modules_to_not_convert: [
      ...['model.layers.*.self_attn', 'model.layers.*.mlp.router', 'model.embed_tokens', 'lm_head'],
    ],
  },
};

/** Dimensions of published models, as their config.json state them; tiny ones for trying the benchmark itself. */
const SHAPES: Readonly<Record<string, ModelConfig>> = {
  tiny: { ...llama3, ...sizes(256, 768, 4, 4, 2), vocab_size: 2048, bos_token_id: 1, eos_token_id: 2 },
  'tiny-moe': {
    ...moe,
    ...sizes(256, 768, 4, 4, 2),
    head_dim: 64,
    moe_intermediate_size: 128,
    num_experts: 16,
    num_experts_per_tok: 4,
    vocab_size: 2048,
    bos_token_id: 1,
    eos_token_id: 2,
  },
  'llama-3.2-1b': {
    ...llama3,
    ...sizes(2048, 8192, 16, 32, 8),
    head_dim: 64,
    max_position_embeddings: 131072,
    rope_scaling: {
      rope_type: 'llama3',
      factor: 32,
      low_freq_factor: 1,
      high_freq_factor: 4,
      original_max_position_embeddings: 8192,
    },
    tie_word_embeddings: true,
  },
  'llama-3-8b': { ...llama3, ...sizes(4096, 14336, 32, 32, 8) },
  'llama-3-70b': { ...llama3, ...sizes(8192, 28672, 80, 64, 8) },
  'qwen3-8b': { ...qwen3, ...sizes(4096, 12288, 36, 32, 8) },
  'qwen3-30b-a3b': {
    ...moe,
    ...sizes(2048, 6144, 48, 32, 4),
    moe_intermediate_size: 768,
    num_experts: 128,
    num_experts_per_tok: 8,
  },
  'qwen3-235b-a22b': {
    ...moe,
    ...sizes(4096, 12288, 94, 64, 4),
    moe_intermediate_size: 1536,
    num_experts: 128,
    num_experts_per_tok: 8,
  },
  'gpt-oss-20b': { ...GPT_OSS_20B, ...MXFP4 },
  'deepseek-v2-lite': DEEPSEEK_V2_LITE,
};

export const SHAPE_NAMES: readonly string[] = Object.keys(SHAPES);

export interface ModelShape {
  readonly name: string;
  readonly config: ModelConfig;
  /** Blocks of the whole model. */
  readonly blocks: number;
}

/** A shape by its name, or that of any config.json by its path. Throws LPQ_USAGE, LPQ_FILE, LPQ_CONFIG, LPQ_ARCH_UNKNOWN. */
export function modelShape(wish: string): ModelShape {
  const config = SHAPES[wish] ?? (/\.json$/.test(wish) ? readShape(wish) : undefined);
  if (!config) throw notTaken('--shape', wish, `${SHAPE_NAMES.join(', ')}, or the path of a config.json`);
  const name = wish in SHAPES ? wish : path.basename(path.dirname(path.resolve(wish)));
  const dir = wish in SHAPES ? wish : path.dirname(wish);
  const { quantization_config: _, ...wide } = config;
  return { name, config, blocks: planModel(architectureOf(wide, dir), wide, dir).blocks.length };
}

/**
 * The shape with another vocabulary: less to make, to read and to carry where only the blocks are measured. Throws
 * LPQ_USAGE for one that is larger than the shape's.
 */
export function withVocabulary(shape: ModelShape, size: number | undefined): ModelShape {
  if (size === undefined) return shape;
  const whole = Number(shape.config.vocab_size);
  if (size < 3 || size > whole) throw notTaken('--vocab', size, `3 to ${whole}`, { of: shape.name });
  return { ...shape, config: { ...shape.config, vocab_size: size, bos_token_id: 1, eos_token_id: 2 } };
}

function readShape(file: string): ModelConfig {
  const value = readJson(file, 'LPQ_CONFIG');
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as ModelConfig;
  throw new LpqError('LPQ_CONFIG', `${file} is not a JSON object`);
}
