import type { GgufArchitectures, Json } from './architecture.js';
import { ropeConfig } from '../source/rope.js';
import { likeLlama, llamaBiases, mixture, partly, sharedMixture, windows } from './config.js';
import { multipliers } from './dense.js';
import * as parts from './parts.js';

const shared = { outer: parts.LLAMA_OUTER, blocks: 'model.layers' } as const;
const MIXTURE = parts.gated('mlp.experts.{expert}');

/** Mixtures of experts without latent attention. */
export const EXPERTS: GgufArchitectures = {
  gpt_oss: {
    ...shared,
    name: 'gpt-oss',
    className: 'GptOssForCausalLM',
    block: parts.GPT_OSS_BLOCK,
    config: (facts, own) => {
      const { rope_scaling, ...rope } = ropeConfig(facts, own.headDim, 150_000);
      return {
        ...likeLlama(facts, own),
        ...rope,
        // Every published GPT-OSS has it, and the file has no key for it.
        ...(rope_scaling ? { rope_scaling: { ...(rope_scaling as Json), truncate: false } } : {}),
        intermediate_size: facts.optional('expert_feed_forward_length') ?? facts.number('feed_forward_length'),
        num_local_experts: facts.number('expert_count'),
        num_experts_per_tok: facts.number('expert_used_count'),
        ...windows(facts, own, 2),
        attention_bias: facts.has('blk.0.attn_q.bias'),
      };
    },
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
  olmoe: {
    ...shared,
    name: 'olmoe',
    className: 'OlmoeForCausalLM',
    block: parts.EXPERT_BLOCK,
    config: (facts, own) => {
      const { moe_intermediate_size: _, ...rest } = mixture(facts, false);
      return { ...likeLlama(facts, own), ...rest, attention_bias: false };
    },
  },
  dots1: {
    ...shared,
    name: 'dots1',
    className: 'Dots1ForCausalLM',
    block: parts.SHARED_BLOCK,
    config: (facts, own) => ({
      ...likeLlama(facts, own),
      ...sharedMixture(facts),
      sliding_window: null,
      attention_bias: facts.has('blk.0.attn_q.bias'),
    }),
  },
  glm4_moe: {
    ...shared,
    name: 'glm4moe',
    className: 'Glm4MoeForCausalLM',
    block: parts.postNormed(parts.SHARED_BLOCK),
    config: (facts, own) => ({
      ...likeLlama(facts, own),
      ...partly(facts, own),
      ...sharedMixture(facts),
      use_qk_norm: facts.has('blk.0.attn_q_norm.weight'),
      attention_bias: facts.has('blk.0.attn_q.bias'),
    }),
  },
  minimax_m2: {
    ...shared,
    name: 'minimax-m2',
    className: 'MiniMaxM2ForCausalLM',
    block: { ...parts.MIXTRAL_BLOCK, 'exp_probs_b.bias': 'block_sparse_moe.e_score_correction_bias' },
    config: (facts, own) => ({
      ...likeLlama(facts, own),
      ...ropeConfig(facts, facts.optional('rope.dimension_count') ?? own.headDim),
      rotary_dim: facts.optional('rope.dimension_count') ?? own.headDim,
      num_local_experts: facts.number('expert_count'),
      num_experts_per_tok: facts.number('expert_used_count'),
      scoring_func: 'sigmoid',
      use_routing_bias: true,
      use_qk_norm: true,
      qk_norm_type: 'per_layer',
    }),
  },
  hunyuan_v1_moe: {
    ...shared,
    name: 'hunyuan-moe',
    className: 'HunYuanMoEV1ForCausalLM',
    block: {
      ...parts.LLAMA_BLOCK,
      attn_q_norm: 'self_attn.query_layernorm',
      attn_k_norm: 'self_attn.key_layernorm',
      ...parts.experts('mlp.gate.wg', MIXTURE, parts.gated('mlp.shared_mlp')),
    },
    config: (facts, own) => ({
      ...likeLlama(facts, own),
      num_experts: facts.number('expert_count'),
      moe_topk: facts.number('expert_used_count'),
      attention_bias: facts.has('blk.0.attn_q.bias'),
      use_qk_norm: facts.has('blk.0.attn_q_norm.weight'),
    }),
  },
  ernie4_5_moe: {
    ...shared,
    name: 'ernie4_5-moe',
    className: 'Ernie4_5_MoeForCausalLM',
    block: {
      ...parts.SHARED_BLOCK,
      'exp_probs_b.bias': { to: 'mlp.moe_statics.e_score_correction_bias', fix: 'one-row' },
    },
    config: (facts, own) => {
      const { head_dim: _, ...rest } = likeLlama(facts, own);
      const width = facts.number('expert_feed_forward_length');
      return {
        ...rest,
        use_bias: false,
        moe_num_experts: facts.number('expert_count'),
        moe_k: facts.number('expert_used_count'),
        moe_intermediate_size: width,
        moe_num_shared_experts: (facts.optional('expert_shared_feed_forward_length') ?? 0) / width,
        moe_layer_start_index: facts.optional('leading_dense_block_count') ?? 0,
        moe_layer_end_index: -1,
        moe_layer_interval: facts.number('interleave_moe_layer_step'),
      };
    },
  },
  exaone_moe: {
    ...shared,
    name: 'exaone-moe',
    className: 'ExaoneMoeForCausalLM',
    block: { ...parts.SHARED_BLOCK, 'exp_probs_b.bias': 'mlp.e_score_correction_bias' },
    config: (facts, own) => {
      const { n_routed_experts, n_shared_experts, ...rest } = sharedMixture(facts);
      return {
        ...likeLlama(facts, own),
        ...rest,
        num_experts: n_routed_experts,
        num_shared_experts: n_shared_experts,
        ...windows(facts, own, 4),
      };
    },
  },
};
