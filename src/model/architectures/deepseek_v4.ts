import type { Architecture } from '../architecture.js';
import { COMPRESSORS_STAY, GROUPS_STAY } from '../plan-compressed.js';
import { CONNECTIONS_STAY } from '../plan-hyper.js';
import { INDEXERS_STAY } from '../plan-indexer.js';
import { llama } from './llama.js';

const compressor = (path: string) => ({
  x: `${path}.wkv`,
  gate: `${path}.wgate`,
  bias: `${path}.ape`,
  norm: `${path}.norm`,
});
const connection = (name: string) => ({ linear: `${name}_fn`, base: `${name}_base`, scale: `${name}_scale` });

const hyper: NonNullable<Architecture['hyper']> = {
  attention: connection('hc_attn'),
  mlp: connection('hc_ffn'),
  head: connection('model.hc_head.hc'),
  streams: ['hc_mult'],
  iterations: ['hc_sinkhorn_iters'],
  epsilon: { keys: ['hc_eps'], otherwise: 1e-6 },
  carried: { 'hyper-connections': CONNECTIONS_STAY },
};

/** DeepSeek-V4: compressed attention, hyper-connections, and experts that a table of token ids chooses in the first blocks. */
export const deepseekV4: Architecture = {
  ...llama,
  modelType: 'deepseek_v4',
  className: 'DeepseekV4ForCausalLM',
  only: {
    attention_bias: false,
    mlp_bias: false,
    num_key_value_heads: 1,
    norm_topk_prob: true,
    scoring_func: 'sqrtsoftplus',
  },
  // The class's, where config.json leaves them out.
  defaults: { compress_rates: { compressed_sparse_attention: 4, heavily_compressed_attention: 128 } },
  published: {
    lists: [
      {
        key: 'compress_ratios',
        as: 'layer_types',
        of: { 0: 'sliding_attention', 4: 'compressed_sparse_attention', 128: 'heavily_compressed_attention' },
      },
    ],
    firsts: [{ key: 'num_hash_layers', as: 'mlp_layer_types', first: 'hash_moe', others: 'moe' }],
    same: {},
  },
  names: { ...llama.names, head: 'head' },
  spelled: [
    {
      has: 'hc_head_fn',
      as: {
        names: { embedding: 'embed', finalNorm: 'norm', head: 'head', block: 'layers.{layer}.' },
        hyper: { ...hyper, head: connection('hc_head') },
      },
    },
  ],
  respelled: [['attn.norm', 'attn.kv_norm']],
  compressed: {
    names: {
      norm: 'attn_norm',
      qA: 'attn.wq_a',
      qNorm: 'attn.q_norm',
      qB: 'attn.wq_b',
      kv: 'attn.wkv',
      kvNorm: 'attn.norm',
      sinks: 'attn.attn_sink',
      oA: 'attn.wo_a',
      o: 'attn.wo_b',
      compressor: compressor('attn.compressor'),
      indexer: {
        q: 'attn.indexer.wq_b',
        weights: 'attn.indexer.weights_proj',
        compressor: compressor('attn.indexer.compressor'),
      },
    },
    types: {
      window: 'sliding_attention',
      all: 'heavily_compressed_attention',
      indexed: 'compressed_sparse_attention',
    },
    carried: { indexers: INDEXERS_STAY, compressors: COMPRESSORS_STAY, "groups' output linears": GROUPS_STAY },
  },
  hyper,
  mlp: {
    kind: 'gated',
    names: { norm: 'ffn_norm', gate: 'ffn.w1', up: 'ffn.w3', down: 'ffn.w2' },
    bias: false,
    activation: { keys: ['hidden_act'], otherwise: 'silu' },
    intermediate: ['moe_intermediate_size'],
  },
  experts: {
    names: {
      router: 'ffn.gate',
      gate: 'ffn.experts.{expert}.w1',
      up: 'ffn.experts.{expert}.w3',
      down: 'ffn.experts.{expert}.w2',
      choiceBias: 'ffn.gate.bias',
    },
    count: ['n_routed_experts'],
    perToken: ['num_experts_per_tok'],
    intermediate: ['moe_intermediate_size'],
    scoring: 'sqrtsoftplus',
    hashed: { table: 'ffn.gate.tid2eid', list: 'mlp_layer_types', type: 'hash_moe', others: ['moe'] },
    normalize: true,
    scale: { keys: ['routed_scaling_factor'], otherwise: 1.5 },
    limit: { keys: ['swiglu_limit'], otherwise: 10 },
    shared: {
      names: { gate: 'ffn.shared_experts.w1', up: 'ffn.shared_experts.w3', down: 'ffn.shared_experts.w2' },
      intermediate: { times: { keys: ['n_shared_experts'], otherwise: 1 } },
    },
    every: 1,
    denseBlocks: 'mlp_only_layers',
  },
};
