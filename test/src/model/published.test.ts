import assert from 'node:assert/strict';
import test from 'node:test';
import { architectureOf } from '../../../src/model/architectures/index.js';
import { buildGraph } from '../../../src/model/graph.js';
import { planModel } from '../../../src/model/plan.js';

const sizes = (hidden: number, inner: number, layers: number, heads: number, kvHeads: number, vocab: number) => ({
  hidden_size: hidden,
  intermediate_size: inner,
  num_hidden_layers: layers,
  num_attention_heads: heads,
  num_key_value_heads: kvHeads,
  vocab_size: vocab,
  max_position_embeddings: 4096,
});
const latent = { kv_lora_rank: 512, qk_nope_head_dim: 128, qk_rope_head_dim: 64, v_head_dim: 128 };

/** What config.json of published mixtures says of their shape, and the parameters on their model cards. */
const MODELS: Readonly<Record<string, readonly [parameters: number, config: Record<string, unknown>]>> = {
  'Mixtral-8x7B': [
    46_702_792_704,
    { model_type: 'mixtral', ...sizes(4096, 14336, 32, 32, 8, 32000), num_local_experts: 8, num_experts_per_tok: 2 },
  ],
  'Qwen1.5-MoE-A2.7B': [
    14_315_784_192,
    {
      model_type: 'qwen2_moe',
      ...sizes(2048, 5632, 24, 16, 16, 151936),
      num_experts: 60,
      num_experts_per_tok: 4,
      moe_intermediate_size: 1408,
      shared_expert_intermediate_size: 5632,
    },
  ],
  'DeepSeek-V2-Lite': [
    15_706_484_224,
    {
      model_type: 'deepseek_v2',
      ...sizes(2048, 10944, 27, 16, 16, 102400),
      ...latent,
      q_lora_rank: null,
      n_routed_experts: 64,
      n_shared_experts: 2,
      num_experts_per_tok: 6,
      moe_intermediate_size: 1408,
      first_k_dense_replace: 1,
      topk_method: 'greedy',
    },
  ],
  'DeepSeek-V3 without its block of multi-token prediction': [
    671_026_419_200,
    {
      model_type: 'deepseek_v3',
      ...sizes(7168, 18432, 61, 128, 128, 129280),
      ...latent,
      q_lora_rank: 1536,
      n_routed_experts: 256,
      n_shared_experts: 1,
      num_experts_per_tok: 8,
      moe_intermediate_size: 2048,
      first_k_dense_replace: 3,
      n_group: 8,
      topk_group: 4,
    },
  ],
  'gpt-oss-20b': [
    20_914_757_184,
    {
      model_type: 'gpt_oss',
      ...sizes(2880, 2880, 24, 64, 8, 201088),
      head_dim: 64,
      num_local_experts: 32,
      num_experts_per_tok: 4,
      sliding_window: 128,
    },
  ],
};

for (const [name, [parameters, config]] of Object.entries(MODELS))
  test(`${name}: the tensors that the graph asks for have the published number of parameters`, () => {
    const graph = buildGraph(planModel(architectureOf(config, name), config, name));
    let count = 0;
    for (const tensors of [graph.outer, ...graph.blocks.map((block) => block.tensors)])
      for (const shape of tensors.values()) count += shape.reduce((a, b) => a * b, 1);
    assert.equal(count, parameters);
  });
