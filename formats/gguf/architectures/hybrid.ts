import type { GgufFacts } from '../source/facts.js';
import { ropeConfig } from '../source/rope.js';
import type { GgufArchitectures, Json, Shared } from './architecture.js';
import { sharedMixture } from './config.js';
import * as parts from './parts.js';

const shared = { outer: parts.LLAMA_OUTER, blocks: 'model.layers' } as const;

/** What each block is, which the file tells by its heads of keys: none in recurrent layers. */
export function types(facts: GgufFacts, { layers }: Shared, recurrent: string, attention: string): string[] {
  const heads = facts.each('attention.head_count_kv', layers);
  return heads.map((count) => (count === 0 ? recurrent : attention));
}

/** Heads of keys of the blocks that have some. */
export const kvHeads = (facts: GgufFacts, { layers }: Shared): number =>
  Math.max(...facts.each('attention.head_count_kv', layers));

const LFM2_BLOCK: parts.PartNames = {
  attn_norm: 'operator_norm',
  attn_q: 'self_attn.q_proj',
  attn_k: 'self_attn.k_proj',
  attn_v: 'self_attn.v_proj',
  attn_output: 'self_attn.out_proj',
  attn_q_norm: 'self_attn.q_layernorm',
  attn_k_norm: 'self_attn.k_layernorm',
  'shortconv.in_proj': 'conv.in_proj',
  'shortconv.conv': { to: 'conv.conv', fix: 'squeezed' },
  'shortconv.out_proj': 'conv.out_proj',
  ffn_norm: 'ffn_norm',
  ffn_gate: 'feed_forward.w1',
  ffn_up: 'feed_forward.w3',
  ffn_down: 'feed_forward.w2',
};

const LFM2_OUTER: parts.PartNames = {
  'token_embd.weight': 'model.embed_tokens.weight',
  'token_embd_norm.weight': 'model.embedding_norm.weight',
  'output.weight': 'lm_head.weight',
};

function lfm2(facts: GgufFacts, own: Shared): Json {
  return {
    ...sizesOf(facts, own),
    intermediate_size: facts.number('feed_forward_length'),
    ...ropeConfig(facts, own.headDim, 1_000_000),
    num_key_value_heads: kvHeads(facts, own),
    norm_eps: facts.number('attention.layer_norm_rms_epsilon'),
    layer_types: types(facts, own, 'conv', 'full_attention'),
    conv_L_cache: facts.number('shortconv.l_cache'),
    conv_bias: false,
    tie_embedding: !facts.has('output.weight'),
  };
}

/** Mamba's and Mamba-2's, below `module`. */
export const mamba = (module: string): parts.PartNames => ({
  ssm_in: `${module}.in_proj`,
  ssm_conv1d: { to: `${module}.conv1d`, fix: 'squeezed' },
  ssm_out: `${module}.out_proj`,
});

const nemotronH = {
  className: 'NemotronHForCausalLM',
  outer: {
    'token_embd.weight': 'backbone.embeddings.weight',
    'output_norm.weight': 'backbone.norm_f.weight',
    'output.weight': 'lm_head.weight',
  },
  blocks: 'backbone.layers',
  block: {
    attn_norm: 'norm',
    attn_q: 'mixer.q_proj',
    attn_k: 'mixer.k_proj',
    attn_v: 'mixer.v_proj',
    attn_output: 'mixer.o_proj',
    ...mamba('mixer'),
    'ssm_dt.bias': 'mixer.dt_bias',
    'ssm_a.': { to: 'mixer.A_log', fix: 'column', minusExp: true },
    'ssm_d.': { to: 'mixer.D', fix: 'column' },
    ssm_norm: { to: 'mixer.norm', fix: 'groups' },
    ffn_up: 'mixer.up_proj',
    ffn_down: 'mixer.down_proj',
  },
} as const;

function nemotron(facts: GgufFacts, own: Shared, fed: string): Json {
  const heads = facts.each('attention.head_count_kv', own.layers);
  const kinds = facts
    .each('feed_forward_length', own.layers)
    .map((width, i) => (width > 0 ? fed : (heads[i] as number) > 0 ? 'attention' : 'linear_attention'));
  const states = facts.number('ssm.time_step_rank');
  return {
    ...sizesOf(facts, own),
    num_key_value_heads: kvHeads(facts, own),
    head_dim: own.headDim,
    layer_norm_epsilon: facts.number('attention.layer_norm_rms_epsilon'),
    layers_block_type: kinds,
    mlp_hidden_act: 'relu2',
    mamba_num_heads: states,
    mamba_head_dim: facts.number('ssm.inner_size') / states,
    ssm_state_size: facts.number('ssm.state_size'),
    n_groups: facts.number('ssm.group_count'),
    conv_kernel: facts.number('ssm.conv_kernel'),
    use_conv_bias: facts.tensors(/ssm_conv1d\.bias$/) > 0,
    use_bias: false,
    // Every published model has it, and the file has no key for it.
    time_step_min: 0.001,
  };
}

/** Models that mix convolutions, or states of Mamba, with attention. */
export const HYBRID: GgufArchitectures = {
  lfm2: {
    ...shared,
    name: 'lfm2',
    className: 'Lfm2ForCausalLM',
    outer: LFM2_OUTER,
    block: LFM2_BLOCK,
    config: (facts, own) => ({ ...lfm2(facts, own), block_auto_adjust_ff_dim: false }),
  },
  lfm2_moe: {
    ...shared,
    name: 'lfm2moe',
    className: 'Lfm2MoeForCausalLM',
    outer: LFM2_OUTER,
    block: {
      ...LFM2_BLOCK,
      ...parts.experts(
        'feed_forward.gate',
        ['w1', 'w3', 'w2'].map((name) => `feed_forward.experts.{expert}.${name}`) as [string, string, string],
      ),
      'exp_probs_b.bias': 'feed_forward.expert_bias',
    },
    config: (facts, own) => ({
      ...lfm2(facts, own),
      num_experts: facts.number('expert_count'),
      num_experts_per_tok: facts.number('expert_used_count'),
      moe_intermediate_size: facts.number('expert_feed_forward_length'),
      num_dense_layers: facts.optional('leading_dense_block_count') ?? 0,
      use_expert_bias: true,
      norm_topk_prob: true,
    }),
  },
  jamba: {
    ...shared,
    name: 'jamba',
    className: 'JambaForCausalLM',
    outer: { ...parts.LLAMA_OUTER, 'output_norm.weight': 'model.final_layernorm.weight' },
    block: {
      ...parts.LLAMA_BLOCK,
      ffn_norm: 'pre_ff_layernorm',
      ffn_gate: 'feed_forward.gate_proj',
      ffn_up: 'feed_forward.up_proj',
      ffn_down: 'feed_forward.down_proj',
      ...parts.experts('feed_forward.router', parts.gated('feed_forward.experts.{expert}')),
      ...mamba('mamba'),
      ssm_x: 'mamba.x_proj',
      ssm_dt: 'mamba.dt_proj',
      ssm_dt_norm: 'mamba.dt_layernorm',
      ssm_b_norm: 'mamba.b_layernorm',
      ssm_c_norm: 'mamba.c_layernorm',
      'ssm_a.': { to: 'mamba.A_log', minusExp: true },
      'ssm_d.': 'mamba.D',
    },
    config: (facts, own) => {
      const sparse = Array.from({ length: own.layers }, (_, i) => facts.has(`blk.${i}.ffn_gate_inp.weight`));
      const first = sparse.indexOf(true);
      const next = sparse.indexOf(true, first + 1);
      return {
        ...sizesOf(facts, own),
        intermediate_size: facts.number('feed_forward_length'),
        rms_norm_eps: facts.number('attention.layer_norm_rms_epsilon'),
        hidden_act: 'silu',
        num_key_value_heads: kvHeads(facts, own),
        num_experts: facts.optional('expert_count') ?? 1,
        num_experts_per_tok: facts.optional('expert_used_count') ?? 1,
        expert_layer_offset: Math.max(0, first),
        expert_layer_period: next < 0 ? own.layers : next - first,
        layer_types: types(facts, own, 'mamba', 'attention'),
        mamba_d_state: facts.number('ssm.state_size'),
        mamba_d_conv: facts.number('ssm.conv_kernel'),
        mamba_dt_rank: facts.number('ssm.time_step_rank'),
        mamba_expand: facts.number('ssm.inner_size') / own.hidden,
        mamba_conv_bias: true,
        mamba_proj_bias: false,
      };
    },
  },
  nemotron_h: {
    ...nemotronH,
    name: 'nemotron_h',
    withExperts: 'nemotron_h with experts',
    config: (facts, own) => ({
      ...nemotron(facts, own, 'mlp'),
      intermediate_size: Math.max(...facts.each('feed_forward_length', own.layers)),
    }),
  },
  'nemotron_h with experts': {
    ...nemotronH,
    name: 'nemotron_h_moe',
    block: {
      ...nemotronH.block,
      ffn_gate_inp: 'mixer.gate',
      'exp_probs_b.bias': 'mixer.gate.e_score_correction_bias',
      ffn_latent_down: 'mixer.fc1_latent_proj',
      ffn_latent_up: 'mixer.fc2_latent_proj',
      ffn_up_shexp: 'mixer.shared_experts.up_proj',
      ffn_down_shexp: 'mixer.shared_experts.down_proj',
      ffn_up_exps: 'mixer.experts.{expert}.up_proj',
      ffn_down_exps: 'mixer.experts.{expert}.down_proj',
    },
    config: (facts, own) => ({
      ...nemotron(facts, own, 'moe'),
      ...sharedMixture(facts),
      intermediate_size: facts.number('expert_feed_forward_length'),
      moe_shared_expert_intermediate_size: facts.number('expert_shared_feed_forward_length'),
      moe_latent_size: facts.optional('moe_latent_size') ?? null,
    }),
  },
};

export function sizesOf(facts: GgufFacts, { hidden, heads, layers }: Shared): Json {
  return {
    hidden_size: hidden,
    num_hidden_layers: layers,
    num_attention_heads: heads,
    max_position_embeddings: facts.number('context_length'),
  };
}
