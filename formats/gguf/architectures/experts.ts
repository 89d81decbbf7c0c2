import type { GgufFacts } from '../source/facts.js';
import { ropeConfig } from '../source/rope.js';
import type { GgufArchitectures, Json, Shared } from './architecture.js';
import { likeLlama, mixture, partial, partly, sharedMixture, twoRopes, windows } from './config.js';
import * as parts from './parts.js';

const shared = { outer: parts.LLAMA_OUTER, blocks: 'model.layers' } as const;
const MIXTURE = parts.gated('mlp.experts.{expert}');

/** Which blocks have experts: those with a router. */
const mixed = (facts: GgufFacts, { layers }: Shared): string[] =>
  Array.from({ length: layers }, (_, i) => (facts.has(`blk.${i}.ffn_gate_inp.weight`) ? 'sparse' : 'dense'));

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
  hy_v3: {
    ...shared,
    name: 'hy_v3',
    className: 'HYV3ForCausalLM',
    block: {
      ...parts.LLAMA_BLOCK,
      ...parts.experts('mlp.router.gate', MIXTURE, parts.gated('mlp.shared_mlp')),
      'exp_probs_b.': 'mlp.expert_bias',
    },
    config: (facts, own) => ({
      ...likeLlama(facts, own),
      num_experts: facts.number('expert_count'),
      num_experts_per_tok: facts.number('expert_used_count'),
      moe_intermediate_size: facts.number('expert_feed_forward_length'),
      num_shared_experts: facts.optional('expert_shared_count') ?? 1,
      router_scaling_factor: facts.optional('expert_weights_scale') ?? 1,
      mlp_layer_types: mixed(facts, own),
      attention_bias: facts.has('blk.0.attn_q.bias'),
      mlp_bias: false,
    }),
  },
  mimo_v2_flash: {
    ...shared,
    name: 'mimo2',
    className: 'MiMoV2FlashForCausalLM',
    ownValues: true,
    block: { ...parts.SHARED_BLOCK, 'attn_sinks.weight': 'self_attn.attention_sink_bias' },
    config: (facts, own) => {
      const { rope_theta: _, rope_scaling: __, num_key_value_heads: ___, ...rest } = likeLlama(facts, own);
      const share = partial(facts, own.headDim);
      const { full_attention, sliding_attention } = twoRopes(facts, own, 5_000_000, 10_000).rope_parameters as {
        full_attention: Json;
        sliding_attention: Json;
      };
      const seen = windows(facts, own, 6);
      const heads = facts.each('attention.head_count_kv', own.layers);
      const whole = (seen.layer_types as readonly string[]).indexOf('full_attention');
      const { n_shared_experts: ____, ...experts } = sharedMixture(facts);
      return {
        ...rest,
        ...experts,
        ...seen,
        norm_topk_prob: true,
        num_key_value_heads: whole < 0 ? (heads[0] as number) / 2 : heads[whole],
        v_head_dim: facts.number('attention.value_length'),
        attention_value_scale: facts.optional('attention.value_scale') ?? 1,
        rope_parameters: {
          full_attention: { ...full_attention, partial_rotary_factor: share },
          sliding_attention: { ...sliding_attention, partial_rotary_factor: share },
        },
        mlp_layer_types: mixed(facts, own),
        attention_bias: facts.has('blk.0.attn_q.bias'),
      };
    },
  },
  llama4_text: {
    ...shared,
    name: 'llama4',
    className: 'Llama4ForCausalLM',
    block: {
      ...parts.LLAMA_BLOCK,
      ffn_gate: 'feed_forward.gate_proj',
      ffn_up: 'feed_forward.up_proj',
      ffn_down: 'feed_forward.down_proj',
      ...parts.experts(
        'feed_forward.router',
        parts.gated('feed_forward.experts.{expert}'),
        parts.gated('feed_forward.shared_expert'),
      ),
    },
    config: (facts, own) => {
      const step = facts.number('interleave_moe_layer_step');
      const layers = Array.from({ length: own.layers }, (_, i) => i);
      return {
        ...likeLlama(facts, own, 500_000),
        intermediate_size: facts.number('expert_feed_forward_length'),
        intermediate_size_mlp: facts.number('feed_forward_length'),
        num_local_experts: facts.number('expert_count'),
        num_experts_per_tok: facts.number('expert_used_count'),
        interleave_moe_layer_step: step,
        moe_layers: layers.filter((i) => (i + 1) % step === 0),
        no_rope_layers: layers.map((i) => ((i + 1) % 4 === 0 ? 0 : 1)),
        layer_types: layers.map((i) => ((i + 1) % 4 === 0 ? 'full_attention' : 'chunked_attention')),
        attention_chunk_size: 8192,
        attn_temperature_tuning: true,
        attn_scale: 0.1,
        floor_scale: 8192,
        use_qk_norm: facts.number('expert_count') !== 128,
        attention_bias: facts.has('blk.0.attn_q.bias'),
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
