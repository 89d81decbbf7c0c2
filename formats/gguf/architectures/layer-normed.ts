import type { GgufFacts } from '../source/facts.js';
import { ropeConfig } from '../source/rope.js';
import type { GgufArchitectures, Json, Shared } from './architecture.js';
import { layerNorm, llamaBiases, partial, partly, sizes, windows } from './config.js';
import * as parts from './parts.js';

const shared = { outer: parts.LLAMA_OUTER, blocks: 'model.layers' } as const;
const layerNormed = { ...shared, outer: { ...parts.LLAMA_OUTER, 'output_norm.bias': 'model.norm.bias' } };

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

/** Models with LayerNorm in the place of RMSNorm. */
export const LAYER_NORMED: GgufArchitectures = {
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
};
