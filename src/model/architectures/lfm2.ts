import type { Architecture } from '../architecture.js';
import { CONVOLUTIONS_STAY } from '../mixers/table.js';
import type { GatedMlpTable } from '../tables/mlp.js';
import { llama } from './llama.js';

const mlp: GatedMlpTable = {
  names: { norm: 'ffn_norm', gate: 'feed_forward.w1', up: 'feed_forward.w3', down: 'feed_forward.w2' },
  bias: false,
  activation: { keys: [], otherwise: 'silu' },
  intermediate: ['intermediate_size'],
};

/** LFM2: gated short convolutions, and grouped-query attention with norms of q and k in some blocks. */
export const lfm2: Architecture = {
  ...llama,
  modelType: 'lfm2',
  className: 'Lfm2ForCausalLM',
  defaults: { vocab_size: 65_536, num_key_value_heads: 8, max_position_embeddings: 128_000 },
  names: { ...llama.names, finalNorm: 'model.embedding_norm' },
  tied: { keys: ['tie_embedding', 'tie_word_embeddings'], otherwise: true },
  norm: { kind: 'rms', epsilon: { keys: ['norm_eps'], otherwise: 1e-5 } },
  recurrent: {
    blocks: { type: 'conv', attention: ['full_attention'], attentionList: 'full_attn_idxs' },
    names: { norm: 'operator_norm' },
    mixer: {
      kind: 'conv',
      names: { input: 'conv.in_proj', conv: 'conv.conv', output: 'conv.out_proj' },
      taps: { keys: ['conv_L_cache'], otherwise: 3 },
      bias: { keys: ['conv_bias'], otherwise: false },
    },
    carried: { convolutions: CONVOLUTIONS_STAY },
  },
  attention: {
    ...llama.attention,
    names: {
      norm: 'operator_norm',
      q: 'self_attn.q_proj',
      k: 'self_attn.k_proj',
      v: 'self_attn.v_proj',
      o: 'self_attn.out_proj',
      qNorm: 'self_attn.q_layernorm',
      kNorm: 'self_attn.k_layernorm',
    },
    bias: { q: false, k: false, v: false, o: false },
    rope: { style: 'half', theta: 1_000_000 },
  },
  mlp: {
    ...mlp,
    intermediate: ['block_ff_dim', 'intermediate_size'],
    adjusted: {
      enabled: { keys: ['block_auto_adjust_ff_dim'], otherwise: true },
      times: { keys: ['block_ffn_dim_multiplier'], otherwise: 1 },
      multiple: { keys: ['block_multiple_of'], otherwise: 256 },
    },
  },
};

/** LFM2-MoE: sigmoid shares of experts with a choice bias, behind a few dense blocks; sizes as they are written. */
export const lfm2Moe: Architecture = {
  ...lfm2,
  modelType: 'lfm2_moe',
  className: 'Lfm2MoeForCausalLM',
  only: { use_expert_bias: true },
  mlp,
  experts: {
    names: {
      router: 'feed_forward.gate',
      gate: 'feed_forward.experts.{expert}.w1',
      up: 'feed_forward.experts.{expert}.w3',
      down: 'feed_forward.experts.{expert}.w2',
      choiceBias: 'feed_forward.expert_bias',
    },
    count: ['num_experts'],
    perToken: ['num_experts_per_tok'],
    intermediate: ['moe_intermediate_size'],
    scoring: 'sigmoid',
    normalize: { keys: ['norm_topk_prob'], otherwise: true },
    scale: { keys: ['routed_scaling_factor'], otherwise: 1 },
    every: 1,
    denseBlocks: 'mlp_only_layers',
    firstDense: { keys: ['num_dense_layers'], otherwise: 2 },
  },
};
