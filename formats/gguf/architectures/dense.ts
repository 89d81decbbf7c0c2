import type { GgufFacts } from '../source/facts.js';
import { ropeConfig } from '../source/rope.js';
import type { GgufArchitectures, Json, Shared } from './architecture.js';
import { layerNorm, likeLlama, llamaBiases, partial, partly, rms, sizes, twoRopes, windows } from './config.js';
import * as parts from './parts.js';

const shared = { outer: parts.LLAMA_OUTER, blocks: 'model.layers' } as const;
const layerNormed = { ...shared, outer: { ...parts.LLAMA_OUTER, 'output_norm.bias': 'model.norm.bias' } };
const rotated = parts.interleaved(parts.LLAMA_BLOCK);

function cohere(facts: GgufFacts, own: Shared): Json {
  const { head_dim: _, ...rest } = sizes(facts, own);
  return {
    ...rest,
    rope_theta: facts.optional('rope.freq_base') ?? 10_000,
    layer_norm_eps: layerNorm(facts),
    hidden_act: 'silu',
    logit_scale: facts.number('logit_scale'),
    attention_bias: facts.has('blk.0.attn_q.bias'),
  };
}

/** Models without experts whose families are no Llamas. */
export const DENSE: GgufArchitectures = {
  phi3: {
    ...shared,
    name: 'phi3',
    className: 'Phi3ForCausalLM',
    block: parts.PHI3_BLOCK,
    config: (facts, own) => {
      const { rope_scaling, ...rope } = partly(facts, own);
      return {
        ...likeLlama(facts, own),
        ...rope,
        rope_scaling: rope_scaling ?? null,
        original_max_position_embeddings:
          facts.optional('rope.scaling.original_context_length') ?? facts.number('context_length'),
        sliding_window: facts.optional('attention.sliding_window') || null,
      };
    },
  },
  starcoder2: {
    ...layerNormed,
    name: 'starcoder2',
    className: 'Starcoder2ForCausalLM',
    block: parts.STARCODER2_BLOCK,
    config: (facts, own) => ({
      ...sizes(facts, own),
      ...ropeConfig(facts, own.headDim),
      norm_epsilon: layerNorm(facts),
      hidden_act: 'gelu_pytorch_tanh',
      use_bias: facts.has('blk.0.attn_q.bias'),
      sliding_window: facts.optional('attention.sliding_window') ?? null,
    }),
  },
  gpt2: {
    name: 'gpt2',
    className: 'GPT2LMHeadModel',
    outer: parts.GPT2_OUTER,
    blocks: 'transformer.h',
    block: parts.GPT2_BLOCK,
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
  gpt_neox: {
    name: 'gptneox',
    className: 'GPTNeoXForCausalLM',
    outer: parts.NEOX_OUTER,
    blocks: 'gpt_neox.layers',
    block: parts.NEOX_BLOCK,
    config: (facts, own) => {
      const { num_key_value_heads: _, head_dim: __, ...rest } = sizes(facts, own);
      const { rope_theta, ...rope } = ropeConfig(facts, facts.optional('rope.dimension_count') ?? own.headDim);
      return {
        ...rest,
        ...rope,
        rotary_emb_base: rope_theta,
        rotary_pct: partial(facts, own.headDim),
        layer_norm_eps: layerNorm(facts),
        hidden_act: 'gelu',
        use_parallel_residual: facts.flag('use_parallel_residual') ?? true,
        attention_bias: facts.has('blk.0.attn_qkv.bias'),
      };
    },
  },
  stablelm: {
    ...layerNormed,
    name: 'stablelm',
    className: 'StableLmForCausalLM',
    block: {
      ...parts.LLAMA_BLOCK,
      attn_q_norm: 'self_attn.q_layernorm.norms.{expert}',
      attn_k_norm: 'self_attn.k_layernorm.norms.{expert}',
    },
    config: (facts, own) => ({
      ...sizes(facts, own),
      ...partly(facts, own),
      layer_norm_eps: layerNorm(facts),
      hidden_act: 'silu',
      use_qkv_bias: facts.has('blk.0.attn_q.bias'),
      use_parallel_residual: !facts.has('blk.0.ffn_norm.weight'),
      qk_layernorm: facts.has('blk.0.attn_q_norm.weight'),
    }),
  },
  nemotron: {
    ...layerNormed,
    name: 'nemotron',
    className: 'NemotronForCausalLM',
    block: parts.LLAMA_BLOCK,
    normsPlusOne: true,
    config: (facts, own) => ({
      ...sizes(facts, own),
      ...partly(facts, own),
      ...llamaBiases(facts),
      norm_eps: layerNorm(facts),
      hidden_act: 'relu2',
    }),
  },
  olmo2: {
    ...shared,
    name: 'olmo2',
    className: 'Olmo2ForCausalLM',
    block: parts.AFTER_BLOCK,
    config: (facts, own) => ({ ...likeLlama(facts, own), attention_bias: false }),
  },
  olmo3: {
    ...shared,
    name: 'olmo2',
    className: 'Olmo3ForCausalLM',
    block: parts.AFTER_BLOCK,
    is: (facts) => (facts.optional('attention.sliding_window') ?? 0) > 0,
    config: (facts, own) => {
      const theta = facts.optional('rope.freq_base') ?? 500_000;
      const { rope_theta: _, rope_scaling: __, ...rest } = likeLlama(facts, own);
      return { ...rest, ...twoRopes(facts, own, theta, theta), ...windows(facts, own, 4), attention_bias: false };
    },
  },
  exaone4: {
    ...shared,
    name: 'exaone4',
    className: 'Exaone4ForCausalLM',
    block: parts.AFTER_BLOCK,
    config: (facts, own) => ({ ...likeLlama(facts, own), ...windows(facts, own, 4) }),
  },
  granite: {
    ...shared,
    name: 'granite',
    className: 'GraniteForCausalLM',
    block: rotated,
    config: (facts, own) => ({ ...likeLlama(facts, own), ...llamaBiases(facts), ...multipliers(facts) }),
  },
  glm4: {
    ...shared,
    name: 'glm4',
    className: 'Glm4ForCausalLM',
    block: parts.GLM4_BLOCK,
    config: (facts, own) => ({
      ...likeLlama(facts, own),
      ...partly(facts, own),
      attention_bias: facts.has('blk.0.attn_q.bias'),
    }),
  },
  glm4v_text: {
    ...shared,
    name: 'glm4',
    className: 'Glm4ForCausalLM',
    readAs: 'glm4',
    is: (facts) => facts.isList('rope.dimension_sections'),
    block: parts.GLM4_BLOCK,
    config: (facts, own) => ({
      ...likeLlama(facts, own),
      ...partly(facts, own),
      attention_bias: facts.has('blk.0.attn_q.bias'),
    }),
  },
  cohere: {
    ...shared,
    name: 'command-r',
    className: 'CohereForCausalLM',
    block: parts.LLAMA_BLOCK,
    config: (facts, own) => ({ ...cohere(facts, own), use_qk_norm: facts.has('blk.0.attn_q_norm.weight') }),
  },
  cohere2: {
    ...shared,
    name: 'cohere2',
    className: 'Cohere2ForCausalLM',
    block: parts.LLAMA_BLOCK,
    config: (facts, own) => ({ ...cohere(facts, own), ...windows(facts, own, 4) }),
  },
  smollm3: {
    ...shared,
    name: 'smollm3',
    className: 'SmolLM3ForCausalLM',
    block: rotated,
    config: (facts, own) => ({
      ...likeLlama(facts, own),
      ...llamaBiases(facts),
      no_rope_layer_interval: 4,
      use_sliding_window: false,
    }),
  },
  arcee: {
    ...shared,
    name: 'arcee',
    className: 'ArceeForCausalLM',
    block: rotated,
    config: (facts, own) => ({ ...likeLlama(facts, own), ...llamaBiases(facts), hidden_act: 'relu2' }),
  },
  ernie4_5: {
    ...shared,
    name: 'ernie4_5',
    className: 'Ernie4_5ForCausalLM',
    block: parts.LLAMA_BLOCK,
    config: (facts, own) => ({ ...likeLlama(facts, own), use_bias: facts.has('blk.0.attn_q.bias') }),
  },
  hunyuan_v1_dense: {
    ...shared,
    name: 'hunyuan-dense',
    className: 'HunYuanDenseV1ForCausalLM',
    block: {
      ...parts.LLAMA_BLOCK,
      attn_q_norm: 'self_attn.query_layernorm',
      attn_k_norm: 'self_attn.key_layernorm',
    },
    config: (facts, own) => ({
      ...likeLlama(facts, own),
      attention_bias: facts.has('blk.0.attn_q.bias'),
      use_qk_norm: facts.has('blk.0.attn_q_norm.weight'),
    }),
  },
  seed_oss: {
    ...shared,
    name: 'seed_oss',
    className: 'SeedOssForCausalLM',
    block: parts.postNormed(parts.LLAMA_BLOCK),
    config: (facts, own) => ({
      ...likeLlama(facts, own),
      attention_bias: facts.has('blk.0.attn_q.bias'),
      attention_out_bias: facts.has('blk.0.attn_output.bias'),
      mlp_bias: false,
    }),
  },
  ministral3: {
    ...shared,
    name: 'mistral3',
    className: 'Ministral3ForCausalLM',
    block: rotated,
    config: (facts, own) => {
      const { rope_theta, rope_scaling, ...rest } = likeLlama(facts, own);
      const beta = facts.optional('attention.temperature_scale');
      const scaling = { rope_type: 'default', ...(rope_scaling as Json | undefined), rope_theta };
      return {
        ...rest,
        sliding_window: null,
        rope_parameters: { ...scaling, ...(beta && { llama_4_scaling_beta: beta }) },
      };
    },
  },
};

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
