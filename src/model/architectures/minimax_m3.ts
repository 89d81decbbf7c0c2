import type { Architecture } from '../architecture.js';
import { INDEXERS_STAY } from '../plan-indexer.js';
import type { ClampTable } from '../tables/mlp.js';
import { llama } from './llama.js';

const clamp: ClampTable = {
  alpha: { keys: ['swiglu_alpha'], otherwise: 1.702 },
  limit: { keys: ['swiglu_limit'], otherwise: 7 },
};

/** MiniMax-M3's language model: runs of keys that an indexer chooses, clamped gates, a shared expert beside sigmoid shares. */
const saved: Architecture = {
  ...llama,
  modelType: 'minimax_m3_vl_text',
  className: 'MiniMaxM3VLForCausalLM',
  defaults: {
    num_key_value_heads: 4,
    dense_intermediate_size: 12_288,
    shared_intermediate_size: 3072,
    num_local_experts: 128,
    num_experts_per_tok: 4,
    index_n_heads: 4,
    index_head_dim: 128,
    index_block_size: 128,
    index_topk_blocks: 16,
    index_local_blocks: 1,
  },
  only: {
    attention_output_gate: false,
    use_gemma_norm: true,
    use_qk_norm: true,
    qk_norm_type: 'per_head',
    scoring_func: 'sigmoid',
    swiglu_beta: 1,
  },
  published: { lists: [{ key: 'moe_layer_freq', as: 'mlp_layer_types', of: ['dense', 'sparse'] }], same: {} },
  norm: { ...llama.norm, offset: 1 },
  attention: {
    ...llama.attention,
    names: { ...llama.attention.names, qNorm: 'self_attn.q_norm', kNorm: 'self_attn.k_norm' },
    bias: { q: false, k: false, v: false, o: false },
    headDim: 128,
    rope: { style: 'half', theta: 5_000_000, partial: true, dimensions: 'rotary_dim' },
    indexer: {
      names: {
        q: 'self_attn.indexer.q_proj',
        k: 'self_attn.indexer.k_proj',
        qNorm: 'self_attn.indexer.q_norm',
        kNorm: 'self_attn.indexer.k_norm',
      },
      type: 'minimax_m3_sparse',
      sizes: {
        heads: { key: 'index_n_heads', older: 'sparse_num_index_heads' },
        dim: { key: 'index_head_dim', older: 'sparse_index_dim' },
        block: { key: 'index_block_size', older: 'sparse_block_size' },
        top: { key: 'index_topk_blocks', older: 'sparse_topk_blocks' },
        local: { key: 'index_local_blocks', older: 'sparse_local_block' },
      },
      older: { object: 'sparse_attention_config', list: 'sparse_attention_freq' },
      carried: { indexers: INDEXERS_STAY },
    },
  },
  mlp: {
    kind: 'fused',
    names: { norm: 'post_attention_layernorm', gateUp: 'mlp.gate_up_proj', down: 'mlp.down_proj' },
    bias: false,
    activation: { keys: [], otherwise: 'silu' },
    intermediate: ['dense_intermediate_size'],
    clamp,
  },
  experts: {
    names: {
      router: 'mlp.gate',
      gate: 'mlp.experts.{expert}.gate_proj',
      up: 'mlp.experts.{expert}.up_proj',
      down: 'mlp.experts.{expert}.down_proj',
      choiceBias: 'mlp.gate.e_score_correction_bias',
    },
    count: ['num_local_experts', 'num_experts'],
    perToken: ['num_experts_per_tok'],
    intermediate: ['intermediate_size'],
    scoring: 'sigmoid',
    normalize: true,
    scale: { keys: ['routed_scaling_factor'], otherwise: 2 },
    gate: clamp,
    shared: {
      names: { gateUp: 'mlp.shared_experts.gate_up_proj', down: 'mlp.shared_experts.down_proj' },
      intermediate: { keys: ['shared_intermediate_size'] },
    },
    every: 1,
    denseBlocks: 'mlp_only_layers',
    blockTypes: 'mlp_layer_types',
    fused: [
      { tensor: 'mlp.experts.gate_up_proj', parts: ['gate', 'up'], stored: 'out-in' },
      { tensor: 'mlp.experts.down_proj', parts: ['down'], stored: 'out-in' },
    ],
  },
};

const sparse = 'block_sparse_moe';
const { fused: _, ...experts } = saved.experts as NonNullable<Architecture['experts']>;

/** The same model as published: separate gates, one tensor per expert, indexers next to attention's linears. */
export const minimaxM3Text: Architecture = {
  ...saved,
  spelled: [
    {
      has: `${sparse}.experts.0.w1.weight`,
      as: {
        attention: {
          ...saved.attention,
          indexer: {
            ...(saved.attention.indexer as NonNullable<Architecture['attention']['indexer']>),
            names: {
              q: 'self_attn.index_q_proj',
              k: 'self_attn.index_k_proj',
              qNorm: 'self_attn.index_q_norm',
              kNorm: 'self_attn.index_k_norm',
            },
          },
        },
        mlp: {
          kind: 'gated',
          names: {
            norm: 'post_attention_layernorm',
            gate: 'mlp.gate_proj',
            up: 'mlp.up_proj',
            down: 'mlp.down_proj',
          },
          bias: false,
          activation: saved.mlp.activation,
          intermediate: saved.mlp.intermediate,
          clamp,
        },
        experts: {
          ...experts,
          names: {
            router: `${sparse}.gate`,
            gate: `${sparse}.experts.{expert}.w1`,
            up: `${sparse}.experts.{expert}.w3`,
            down: `${sparse}.experts.{expert}.w2`,
            choiceBias: `${sparse}.e_score_correction_bias`,
          },
          shared: {
            names: {
              gate: `${sparse}.shared_experts.gate_proj`,
              up: `${sparse}.shared_experts.up_proj`,
              down: `${sparse}.shared_experts.down_proj`,
            },
            intermediate: { keys: ['shared_intermediate_size'] },
          },
        },
      },
    },
  ],
};
