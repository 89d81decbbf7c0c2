import type { GgufArchitecture, GgufArchitectures, Json } from './architecture.js';
import { likeLlama, llamaBiases, multipliers, partly, twoRopes, windows } from './config.js';
import * as parts from './parts.js';

const shared = { outer: parts.LLAMA_OUTER, blocks: 'model.layers' } as const;
const rotated = parts.interleaved(parts.LLAMA_BLOCK);

const GLM4: GgufArchitecture = {
  ...shared,
  name: 'glm4',
  className: 'Glm4ForCausalLM',
  block: parts.GLM4_BLOCK,
  config: (facts, own) => ({
    ...likeLlama(facts, own),
    ...partly(facts, own),
    attention_bias: facts.has('blk.0.attn_q.bias'),
  }),
};

/** Models of RMSNorm whose families are no Llamas; Granite, also with experts. */
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
  granitemoe: {
    ...shared,
    name: 'granitemoe',
    className: 'GraniteMoeForCausalLM',
    block: {
      ...parts.interleaved(parts.LLAMA_BLOCK),
      ...parts.experts('block_sparse_moe.router.layer', parts.gated('block_sparse_moe.experts.{expert}')),
    },
    config: (facts, own) => ({
      ...likeLlama(facts, own),
      ...llamaBiases(facts),
      ...multipliers(facts),
      num_local_experts: facts.number('expert_count'),
      num_experts_per_tok: facts.number('expert_used_count'),
    }),
  },
  glm4: GLM4,
  glm4v_text: {
    ...GLM4,
    readAs: 'glm4',
    block: {
      ...parts.GLM4_BLOCK,
      attn_q: { to: 'self_attn.q_proj', fix: 'halved-q' },
      attn_k: { to: 'self_attn.k_proj', fix: 'halved-k' },
    },
    is: (facts) => facts.isList('rope.dimension_sections'),
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
  apertus: {
    ...shared,
    name: 'apertus',
    className: 'ApertusForCausalLM',
    block: { ...parts.LLAMA_BLOCK, attn_norm: 'attention_layernorm', ffn_norm: 'feedforward_layernorm' },
    scalars: {
      'xielu.alpha_p': { to: 'mlp.act_fn.alpha_p', shape: [1] },
      'xielu.alpha_n': { to: 'mlp.act_fn.alpha_n', shape: [1] },
      'xielu.beta': { to: 'mlp.act_fn.beta', shape: [] },
      'xielu.eps': { to: 'mlp.act_fn.eps', shape: [] },
    },
    config: (facts, own) => {
      const { rope_theta, rope_scaling, ...rest } = likeLlama(facts, own);
      return {
        ...rest,
        attention_bias: facts.has('blk.0.attn_q.bias'),
        hidden_act: 'xielu',
        // A class with a scaling of its own where config.json says nothing.
        rope_parameters: { rope_type: 'default', ...(rope_scaling as Json | undefined), rope_theta },
      };
    },
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
