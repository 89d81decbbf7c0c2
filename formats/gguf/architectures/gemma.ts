import type { GgufFacts } from '../source/facts.js';
import type { GgufArchitectures, Json, Shared } from './architecture.js';
import { likeLlama, partial, perLayerRows, twoRopes, windows } from './config.js';
import * as parts from './parts.js';

const shared = { outer: parts.LLAMA_OUTER, blocks: 'model.layers' } as const;

/** 27B alone divides scores by the root of hidden / heads. */
function gemma(facts: GgufFacts, own: Shared, layersOf27B: number, usual: number): Json {
  return {
    ...likeLlama(facts, own),
    hidden_activation: 'gelu_pytorch_tanh',
    query_pre_attn_scalar: own.layers === layersOf27B ? own.hidden / own.heads : own.headDim,
    ...windows(facts, own, usual),
    attention_bias: false,
  };
}

/** Gemma 4: sizes of blocks with a window and of those without, per-layer embeddings, experts beside the MLP. */
function gemma4(facts: GgufFacts, own: Shared): Json {
  const { layer_types, sliding_window } = windows(facts, own, 6) as { layer_types: string[]; sliding_window: number };
  const heads = facts.each('attention.head_count_kv', own.layers);
  const widths = facts.each('feed_forward_length', own.layers);
  const [whole, local] = ['full_attention', 'sliding_attention'].map((type) => layer_types.indexOf(type)) as [
    number,
    number,
  ];
  const [least, most] = [Math.min(...widths), Math.max(...widths)];
  const { full_attention, sliding_attention } = twoRopes(facts, own, 1_000_000, 10_000).rope_parameters as Record<
    string,
    Json
  >;
  const experts = facts.optional('expert_count');
  return {
    hidden_size: own.hidden,
    intermediate_size: least,
    use_double_wide_mlp: most > least,
    num_hidden_layers: own.layers,
    num_attention_heads: own.heads,
    num_key_value_heads: heads[local < 0 ? 0 : local],
    num_global_key_value_heads: heads[whole < 0 ? 0 : whole],
    head_dim: facts.optional('attention.key_length_swa') ?? own.headDim,
    global_head_dim: own.headDim,
    attention_k_eq_v: whole >= 0 && !facts.has(`blk.${whole}.attn_v.weight`) && facts.has(`blk.${whole}.attn_k.weight`),
    max_position_embeddings: facts.number('context_length'),
    rms_norm_eps: facts.number('attention.layer_norm_rms_epsilon'),
    hidden_activation: 'gelu_pytorch_tanh',
    sliding_window,
    layer_types,
    num_kv_shared_layers: facts.optional('attention.shared_kv_layers') ?? 0,
    final_logit_softcapping: facts.optional('final_logit_softcapping') || null,
    hidden_size_per_layer_input: facts.optional('embedding_length_per_layer_input') ?? 0,
    vocab_size_per_layer_input: perLayerRows(facts),
    rope_parameters: {
      full_attention: {
        rope_type: 'proportional',
        rope_theta: (full_attention as Json).rope_theta,
        partial_rotary_factor: turning(facts) / (partial(facts, own.headDim) * own.headDim),
      },
      sliding_attention: sliding_attention as Json,
    },
    enable_moe_block: experts !== undefined,
    ...(experts !== undefined && {
      num_experts: experts,
      top_k_experts: facts.number('expert_used_count'),
      moe_intermediate_size: facts.number('expert_feed_forward_length'),
    }),
  };
}

/** How many elements of a head turn: those whose frequency is divided by no giant. */
function turning(facts: GgufFacts): number {
  return 2 * facts.floats('rope_freqs.weight').filter((factor) => factor < 1e10).length;
}

/** Gemma, 1 to 4. */
export const GEMMA: GgufArchitectures = {
  gemma: {
    ...shared,
    name: 'gemma',
    className: 'GemmaForCausalLM',
    block: parts.LLAMA_BLOCK,
    normsPlusOne: true,
    config: (facts, own) => ({ ...likeLlama(facts, own), hidden_act: 'gelu_pytorch_tanh', attention_bias: false }),
  },
  gemma2: {
    ...shared,
    name: 'gemma2',
    className: 'Gemma2ForCausalLM',
    block: parts.GEMMA_BLOCK,
    normsPlusOne: true,
    config: (facts, own) => ({
      ...gemma(facts, own, 46, 2),
      attn_logit_softcapping: facts.optional('attn_logit_softcapping') ?? 50,
      final_logit_softcapping: facts.optional('final_logit_softcapping') ?? 30,
    }),
  },
  gemma3_text: {
    ...shared,
    name: 'gemma3',
    className: 'Gemma3ForCausalLM',
    block: parts.GEMMA_BLOCK,
    normsPlusOne: true,
    config: (facts, own) => {
      const { rope_theta: _, rope_scaling: __, ...rest } = gemma(facts, own, 62, 6);
      return {
        ...rest,
        ...twoRopes(facts, own, 1_000_000, 10_000),
        final_logit_softcapping: facts.optional('final_logit_softcapping') || null,
        attn_logit_softcapping: null,
      };
    },
  },
  gemma4_text: {
    name: 'gemma4',
    className: 'Gemma4ForCausalLM',
    outer: parts.PER_LAYER_OUTER,
    blocks: 'model.layers',
    block: {
      ...parts.GEMMA_BLOCK,
      ...parts.PER_LAYER_BLOCK,
      'layer_output_scale.weight': 'layer_scalar',
      ...parts.experts('router.proj', parts.gated('experts.{expert}')),
      'ffn_gate_inp.scale': 'router.scale',
      'ffn_down_exps.scale': 'router.per_expert_scale',
      pre_ffw_norm_2: 'pre_feedforward_layernorm_2',
      post_ffw_norm_1: 'post_feedforward_layernorm_1',
      post_ffw_norm_2: 'post_feedforward_layernorm_2',
    },
    config: gemma4,
  },
};
