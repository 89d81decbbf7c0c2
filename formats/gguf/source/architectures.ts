import { DEEPSEEK } from './deepseek.js';
import type { GgufFacts } from './facts.js';
import { badGguf } from './file.js';
import * as names from './names.js';
import { ropeConfig } from './rope.js';

type Json = Readonly<Record<string, unknown>>;

/** What an architecture of llama.cpp is called in a checkpoint, and how its metadata becomes config.json. */
export interface SourceArchitecture {
  /** model_type and the class of config.json. */
  readonly model: readonly [type: string, className: string];
  readonly outer: names.SourceNames;
  /** What blocks begin with, and their parts. */
  readonly blocks: string;
  readonly block: names.SourceNames;
  /** The file has 1 + weight of every norm. */
  readonly normsPlusOne?: boolean;
  /** Latent attention: the linear of a block that makes keys and values of the latent vector, of which the file may have halves. */
  readonly latent?: string;
  /** The row that a file's metadata asks for instead, if not this one. */
  readonly variant?: (facts: GgufFacts) => string | undefined;
  /** Keys of config.json beside those of every model. */
  readonly config: (facts: GgufFacts, shared: Shared) => Json;
}

/** What every architecture says under the same names. */
export interface Shared {
  readonly hidden: number;
  readonly heads: number;
  readonly headDim: number;
  readonly layers: number;
}

const { LLAMA_BLOCK, LLAMA_OUTER } = names;

const rms = (facts: GgufFacts): Json => ({ rms_norm_eps: facts.number('attention.layer_norm_rms_epsilon') });

/** Sizes as Llama's config.json names them. */
function sizes(facts: GgufFacts, { hidden, heads, headDim, layers }: Shared): Json {
  return {
    hidden_size: hidden,
    intermediate_size: facts.number('feed_forward_length'),
    num_hidden_layers: layers,
    num_attention_heads: heads,
    num_key_value_heads: facts.optional('attention.head_count_kv') ?? heads,
    head_dim: headDim,
    max_position_embeddings: facts.number('context_length'),
  };
}

function likeLlama(facts: GgufFacts, shared: Shared, theta?: number): Json {
  return {
    ...sizes(facts, shared),
    ...rms(facts),
    ...ropeConfig(facts, shared.headDim, theta),
    hidden_act: 'silu',
  };
}

const llamaBiases = (facts: GgufFacts): Json => ({
  attention_bias: facts.has('blk.0.attn_q.bias'),
  mlp_bias: facts.has('blk.0.ffn_up.bias'),
});

function mixture(facts: GgufFacts, normalized: boolean): Json {
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

/** Part of a head that is rotated. */
const partial = (facts: GgufFacts, headDim: number): number =>
  (facts.optional('rope.dimension_count') ?? headDim) / headDim;

/** 27B alone divides scores by the root of hidden / heads. */
function gemma(facts: GgufFacts, shared: Shared, layersOf27B: number): Json {
  return {
    ...likeLlama(facts, shared),
    hidden_activation: 'gelu_pytorch_tanh',
    query_pre_attn_scalar: shared.layers === layersOf27B ? shared.hidden / shared.heads : shared.headDim,
    sliding_window: facts.number('attention.sliding_window'),
    attention_bias: false,
  };
}

const layerNorm = (facts: GgufFacts): number => facts.number('attention.layer_norm_epsilon');

/** By general.architecture. */
export const SOURCE_ARCHITECTURES: Readonly<Record<string, SourceArchitecture>> = {
  ...DEEPSEEK,
  llama: {
    model: ['llama', 'LlamaForCausalLM'],
    variant: (facts) => ((facts.optional('expert_count') ?? 0) > 0 ? 'llama with experts' : undefined),
    outer: LLAMA_OUTER,
    blocks: 'model.layers',
    block: names.interleaved(LLAMA_BLOCK),
    config: (facts, shared) => ({ ...likeLlama(facts, shared), ...llamaBiases(facts) }),
  },
  'llama with experts': {
    model: ['mixtral', 'MixtralForCausalLM'],
    outer: LLAMA_OUTER,
    blocks: 'model.layers',
    block: names.interleaved(names.MIXTRAL_BLOCK),
    config: (facts, shared) => ({
      ...likeLlama(facts, shared),
      num_local_experts: facts.number('expert_count'),
      num_experts_per_tok: facts.number('expert_used_count'),
      sliding_window: null,
    }),
  },
  qwen2: {
    model: ['qwen2', 'Qwen2ForCausalLM'],
    outer: LLAMA_OUTER,
    blocks: 'model.layers',
    block: LLAMA_BLOCK,
    config: (facts, shared) => ({ ...likeLlama(facts, shared), use_sliding_window: false }),
  },
  qwen2moe: {
    model: ['qwen2_moe', 'Qwen2MoeForCausalLM'],
    outer: LLAMA_OUTER,
    blocks: 'model.layers',
    block: {
      ...LLAMA_BLOCK,
      ...names.EXPERT_BLOCK,
      ffn_gate_inp_shexp: { to: 'mlp.shared_expert_gate', fix: 'one-row' },
    },
    config: (facts, shared) => ({
      ...likeLlama(facts, shared),
      ...mixture(facts, false),
      shared_expert_intermediate_size:
        facts.optional('expert_shared_feed_forward_length') ??
        (facts.shape('blk.0.ffn_gate_shexp.weight')[0] as number),
      qkv_bias: facts.has('blk.0.attn_q.bias'),
      use_sliding_window: false,
    }),
  },
  qwen3: {
    model: ['qwen3', 'Qwen3ForCausalLM'],
    outer: LLAMA_OUTER,
    blocks: 'model.layers',
    block: LLAMA_BLOCK,
    config: (facts, shared) => ({ ...likeLlama(facts, shared), attention_bias: false, use_sliding_window: false }),
  },
  qwen3moe: {
    model: ['qwen3_moe', 'Qwen3MoeForCausalLM'],
    outer: LLAMA_OUTER,
    blocks: 'model.layers',
    block: { ...LLAMA_BLOCK, ...names.EXPERT_BLOCK },
    config: (facts, shared) => ({
      ...likeLlama(facts, shared),
      ...mixture(facts, true),
      attention_bias: false,
      use_sliding_window: false,
    }),
  },
  gemma2: {
    model: ['gemma2', 'Gemma2ForCausalLM'],
    outer: LLAMA_OUTER,
    blocks: 'model.layers',
    block: names.GEMMA_BLOCK,
    normsPlusOne: true,
    config: (facts, shared) => ({
      ...gemma(facts, shared, 46),
      attn_logit_softcapping: facts.optional('attn_logit_softcapping') ?? 50,
      final_logit_softcapping: facts.optional('final_logit_softcapping') ?? 30,
    }),
  },
  gemma3: {
    model: ['gemma3_text', 'Gemma3ForCausalLM'],
    outer: LLAMA_OUTER,
    blocks: 'model.layers',
    block: names.GEMMA_BLOCK,
    normsPlusOne: true,
    config: (facts, shared) => ({
      ...gemma(facts, shared, 62),
      ...ropeConfig(facts, shared.headDim, 1_000_000),
      rope_local_base_freq: facts.optional('rope.freq_base_swa') ?? 10_000,
      sliding_window_pattern: 6,
      final_logit_softcapping: facts.optional('final_logit_softcapping') ?? null,
      attn_logit_softcapping: null,
    }),
  },
  phi3: {
    model: ['phi3', 'Phi3ForCausalLM'],
    outer: LLAMA_OUTER,
    blocks: 'model.layers',
    block: names.PHI3_BLOCK,
    config: (facts, shared) => {
      const { rope_scaling, ...rope } = ropeConfig(facts, facts.optional('rope.dimension_count') ?? shared.headDim);
      return {
        ...likeLlama(facts, shared),
        ...rope,
        rope_scaling: rope_scaling ?? null,
        partial_rotary_factor: partial(facts, shared.headDim),
        original_max_position_embeddings:
          facts.optional('rope.scaling.original_context_length') ?? facts.number('context_length'),
        sliding_window: facts.optional('attention.sliding_window') || null,
      };
    },
  },
  starcoder2: {
    model: ['starcoder2', 'Starcoder2ForCausalLM'],
    outer: { ...LLAMA_OUTER, 'output_norm.bias': 'model.norm.bias' },
    blocks: 'model.layers',
    block: names.STARCODER2_BLOCK,
    config: (facts, shared) => ({
      ...sizes(facts, shared),
      ...ropeConfig(facts, shared.headDim),
      norm_epsilon: layerNorm(facts),
      hidden_act: 'gelu_pytorch_tanh',
      use_bias: facts.has('blk.0.attn_q.bias'),
      sliding_window: facts.optional('attention.sliding_window') ?? null,
    }),
  },
  gpt2: {
    model: ['gpt2', 'GPT2LMHeadModel'],
    outer: names.GPT2_OUTER,
    blocks: 'transformer.h',
    block: names.GPT2_BLOCK,
    config: (facts, { hidden, heads, layers }) => ({
      n_embd: hidden,
      n_head: heads,
      n_layer: layers,
      n_inner: facts.number('feed_forward_length'),
      n_positions: facts.shape('position_embd.weight')[0] as number,
      layer_norm_epsilon: layerNorm(facts),
      activation_function: 'gelu_new',
    }),
  },
  gptneox: {
    model: ['gpt_neox', 'GPTNeoXForCausalLM'],
    outer: names.NEOX_OUTER,
    blocks: 'gpt_neox.layers',
    block: names.NEOX_BLOCK,
    config: (facts, shared) => {
      const { num_key_value_heads: _, head_dim: __, ...own } = sizes(facts, shared);
      const { rope_theta, ...rope } = ropeConfig(facts, facts.optional('rope.dimension_count') ?? shared.headDim);
      return {
        ...own,
        ...rope,
        rotary_emb_base: rope_theta,
        rotary_pct: partial(facts, shared.headDim),
        layer_norm_eps: layerNorm(facts),
        hidden_act: 'gelu',
        use_parallel_residual: facts.flag('use_parallel_residual') ?? true,
        attention_bias: facts.has('blk.0.attn_qkv.bias'),
      };
    },
  },
  olmo2: {
    model: ['olmo2', 'Olmo2ForCausalLM'],
    outer: LLAMA_OUTER,
    blocks: 'model.layers',
    block: names.AFTER_BLOCK,
    config: (facts, shared) => {
      if (facts.optional('attention.sliding_window') !== undefined)
        return badGguf(facts.file.path, 'it is an OLMo 3, which lpq reads from safetensors only');
      return { ...likeLlama(facts, shared), attention_bias: false };
    },
  },
  granite: {
    model: ['granite', 'GraniteForCausalLM'],
    outer: LLAMA_OUTER,
    blocks: 'model.layers',
    block: names.interleaved(LLAMA_BLOCK),
    config: (facts, shared) => ({
      ...likeLlama(facts, shared),
      ...llamaBiases(facts),
      attention_multiplier: facts.optional('attention.scale') ?? 1,
      embedding_multiplier: facts.optional('embedding_scale') ?? 1,
      residual_multiplier: facts.optional('residual_scale') ?? 1,
      logits_scaling: facts.optional('logit_scale') ?? 1,
    }),
  },
  glm4: {
    model: ['glm4', 'Glm4ForCausalLM'],
    outer: LLAMA_OUTER,
    blocks: 'model.layers',
    block: names.GLM4_BLOCK,
    config: (facts, shared) => ({
      ...likeLlama(facts, shared),
      partial_rotary_factor: partial(facts, shared.headDim),
      attention_bias: facts.has('blk.0.attn_q.bias'),
    }),
  },
  'command-r': {
    model: ['cohere', 'CohereForCausalLM'],
    outer: LLAMA_OUTER,
    blocks: 'model.layers',
    block: LLAMA_BLOCK,
    config: (facts, shared) => ({ ...cohere(facts, shared), use_qk_norm: facts.has('blk.0.attn_q_norm.weight') }),
  },
  cohere2: {
    model: ['cohere2', 'Cohere2ForCausalLM'],
    outer: LLAMA_OUTER,
    blocks: 'model.layers',
    block: LLAMA_BLOCK,
    config: (facts, shared) => ({
      ...cohere(facts, shared),
      sliding_window: facts.number('attention.sliding_window'),
      sliding_window_pattern: 4,
    }),
  },
  'gpt-oss': {
    model: ['gpt_oss', 'GptOssForCausalLM'],
    outer: LLAMA_OUTER,
    blocks: 'model.layers',
    block: names.GPT_OSS_BLOCK,
    config: (facts, shared) => {
      const { rope_scaling, ...rope } = ropeConfig(facts, shared.headDim, 150_000);
      return {
        ...likeLlama(facts, shared),
        ...rope,
        // Every GPT-OSS has it, and the file has no key for it.
        ...(rope_scaling ? { rope_scaling: { ...(rope_scaling as Json), truncate: false } } : {}),
        intermediate_size: facts.optional('expert_feed_forward_length') ?? facts.number('feed_forward_length'),
        num_local_experts: facts.number('expert_count'),
        num_experts_per_tok: facts.number('expert_used_count'),
        sliding_window: facts.number('attention.sliding_window'),
        attention_bias: facts.has('blk.0.attn_q.bias'),
      };
    },
  },
};

function cohere(facts: GgufFacts, shared: Shared): Json {
  const { head_dim: _, ...own } = sizes(facts, shared);
  return {
    ...own,
    rope_theta: facts.optional('rope.freq_base') ?? 10_000,
    layer_norm_eps: layerNorm(facts),
    hidden_act: 'silu',
    logit_scale: facts.number('logit_scale'),
    attention_bias: facts.has('blk.0.attn_q.bias'),
  };
}
