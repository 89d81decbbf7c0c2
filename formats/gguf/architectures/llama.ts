import type { GgufArchitecture, GgufArchitectures } from './architecture.js';
import { likeLlama, llamaBiases, mixture } from './config.js';
import * as parts from './parts.js';

const shared = { outer: parts.LLAMA_OUTER, blocks: 'model.layers' } as const;
const llama = { ...shared, block: parts.interleaved(parts.LLAMA_BLOCK) };

const ROWS: GgufArchitectures = {
  llama: {
    ...llama,
    name: 'llama',
    className: 'LlamaForCausalLM',
    config: (facts, sizes) => ({ ...likeLlama(facts, sizes), ...llamaBiases(facts) }),
  },
  mistral: {
    ...llama,
    name: 'llama',
    className: 'MistralForCausalLM',
    is: () => false,
    config: (facts, sizes) => ({ ...likeLlama(facts, sizes), sliding_window: null }),
  },
  mixtral: {
    ...shared,
    name: 'llama',
    className: 'MixtralForCausalLM',
    block: parts.interleaved(parts.MIXTRAL_BLOCK),
    is: (facts) => (facts.optional('expert_count') ?? 0) > 0,
    config: (facts, sizes) => ({
      ...likeLlama(facts, sizes),
      num_local_experts: facts.number('expert_count'),
      num_experts_per_tok: facts.number('expert_used_count'),
      sliding_window: null,
    }),
  },
  qwen2: {
    ...shared,
    name: 'qwen2',
    className: 'Qwen2ForCausalLM',
    block: parts.LLAMA_BLOCK,
    config: (facts, sizes) => ({ ...likeLlama(facts, sizes), use_sliding_window: false }),
  },
  qwen2_moe: {
    ...shared,
    name: 'qwen2moe',
    className: 'Qwen2MoeForCausalLM',
    block: parts.QWEN2_MOE_BLOCK,
    config: (facts, sizes) => ({
      ...likeLlama(facts, sizes),
      ...mixture(facts, false),
      shared_expert_intermediate_size:
        facts.optional('expert_shared_feed_forward_length') ??
        (facts.shape('blk.0.ffn_gate_shexp.weight')[0] as number),
      qkv_bias: facts.has('blk.0.attn_q.bias'),
      use_sliding_window: false,
    }),
  },
  qwen3: {
    ...shared,
    name: 'qwen3',
    className: 'Qwen3ForCausalLM',
    block: parts.LLAMA_BLOCK,
    config: (facts, sizes) => ({ ...likeLlama(facts, sizes), attention_bias: false, use_sliding_window: false }),
  },
  qwen3_moe: {
    ...shared,
    name: 'qwen3moe',
    className: 'Qwen3MoeForCausalLM',
    block: parts.EXPERT_BLOCK,
    config: (facts, sizes) => ({
      ...likeLlama(facts, sizes),
      ...mixture(facts, true),
      attention_bias: false,
      use_sliding_window: false,
    }),
  },
};

/** Llama, Mistral and Qwen; and the language models of Qwen's that see. */
export const LLAMA: GgufArchitectures = {
  ...ROWS,
  qwen2_5_vl_text: { ...(ROWS.qwen2 as GgufArchitecture), name: 'qwen2vl', readAs: 'qwen2' },
  qwen3_vl_text: { ...(ROWS.qwen3 as GgufArchitecture), name: 'qwen3vl', readAs: 'qwen3' },
  qwen3_vl_moe_text: { ...(ROWS.qwen3_moe as GgufArchitecture), name: 'qwen3vlmoe', readAs: 'qwen3_moe' },
};
