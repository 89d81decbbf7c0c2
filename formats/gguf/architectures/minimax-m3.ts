import type { GgufFacts } from '../source/facts.js';
import { ropeConfig } from '../source/rope.js';
import type { GgufArchitectures, Json, Shared } from './architecture.js';
import { rms, sizes } from './config.js';
import * as parts from './parts.js';

const { ffn_gate: _, ffn_up: __, ...ATTENTION } = parts.LLAMA_BLOCK;

/** The linears and norms of an indexer, whose names begin with this. */
const indexer = (prefix: string): parts.PartNames =>
  Object.fromEntries(
    ['q_proj', 'k_proj', 'q_norm', 'k_norm'].map((part) => [`indexer.${part}`, `self_attn.${prefix}${part}`]),
  );

function minimaxM3(facts: GgufFacts, own: Shared): Json {
  const rotary = facts.optional('rope.dimension_count') ?? own.headDim;
  const width = facts.number('expert_feed_forward_length');
  const each = (part: string, yes: string, no: string) =>
    Array.from({ length: own.layers }, (_, i) => (facts.has(`blk.${i}.${part}.weight`) ? yes : no));
  return {
    ...sizes(facts, own),
    ...rms(facts),
    ...ropeConfig(facts, rotary),
    hidden_act: 'silu',
    rotary_dim: rotary,
    partial_rotary_factor: rotary / own.headDim,
    dense_intermediate_size: facts.number('feed_forward_length'),
    intermediate_size: width,
    shared_intermediate_size: width * facts.number('expert_shared_count'),
    num_local_experts: facts.number('expert_count'),
    num_experts_per_tok: facts.number('expert_used_count'),
    routed_scaling_factor: facts.optional('expert_weights_scale') ?? 1,
    scoring_func: 'sigmoid',
    mlp_layer_types: each('ffn_gate_inp', 'sparse', 'dense'),
    layer_types: each('indexer.q_proj', 'minimax_m3_sparse', 'full_attention'),
    index_n_heads: facts.number('attention.indexer.head_count'),
    index_head_dim: facts.number('attention.indexer.key_length'),
    index_topk_blocks: facts.number('attention.indexer.top_k'),
    index_block_size: facts.number('attention.indexer.block_size'),
    index_local_blocks: facts.number('attention.indexer.local_blocks'),
    // llama.cpp has no keys for them.
    swiglu_alpha: 1.702,
    swiglu_limit: 7,
  };
}

/** MiniMax-M3, as its class has it and as it was published. */
export const MINIMAX_M3: GgufArchitectures = {
  minimax_m3_vl_text: {
    name: 'minimax-m3',
    className: 'MiniMaxM3VLForCausalLM',
    outer: parts.LLAMA_OUTER,
    blocks: 'model.layers',
    normsPlusOne: true,
    block: {
      ...ATTENTION,
      ...indexer('indexer.'),
      ...parts.parted('ffn_gate', 'ffn_up', 'mlp.gate_up_proj'),
      ...parts.experts('mlp.gate', parts.gated('mlp.experts.{expert}')),
      'exp_probs_b.bias': 'mlp.gate.e_score_correction_bias',
      ...parts.parted('ffn_gate_shexp', 'ffn_up_shexp', 'mlp.shared_experts.gate_up_proj'),
      ffn_down_shexp: 'mlp.shared_experts.down_proj',
    },
    spelled: {
      has: 'block_sparse_moe.experts.0.w1.weight',
      block: {
        ...parts.MIXTRAL_BLOCK,
        ...indexer('index_'),
        'exp_probs_b.bias': 'block_sparse_moe.e_score_correction_bias',
        ffn_gate_shexp: 'block_sparse_moe.shared_experts.gate_proj',
        ffn_up_shexp: 'block_sparse_moe.shared_experts.up_proj',
        ffn_down_shexp: 'block_sparse_moe.shared_experts.down_proj',
      },
    },
    config: minimaxM3,
  },
};
