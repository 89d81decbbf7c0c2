import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { createRuntime } from '../../../native/binding.js';
import { LpqError } from '../../../src/core/error.js';
import { architectureOf } from '../../../src/model/architectures/index.js';
import { makeBatch } from '../../../src/model/batch.js';
import { embedBatches, loadOuter, runBlock } from '../../../src/model/forward.js';
import { buildGraph } from '../../../src/model/graph.js';
import { planModel } from '../../../src/model/plan.js';
import { disposeWeights, loadWeights } from '../../../src/model/weights.js';
import { ARCHITECTURES, plainSource } from './fixtures.js';

/** What config.json of an architecture may not say, each with the key that the message names. */

const configOf = (name: string) =>
  JSON.parse(readFileSync(path.join(ARCHITECTURES, name, 'config.json'), 'utf8')) as Record<string, unknown>;

const CASES: readonly [name: string, more: Record<string, unknown>, key: RegExp][] = [
  ['olmoe', { clip_qkv: 8 }, /'clip_qkv'/],
  ['hunyuan_v1_dense', { use_cla: true }, /'use_cla'/],
  ['hunyuan_v1_moe', { moe_topk: [2] }, /'moe_topk' has no count for block 1/],
  ['hunyuan_v1_moe', { moe_topk: [2, 0] }, /'moe_topk' has no count for block 1/],
  ['minimax_m2', { qk_norm_type: 'per_head' }, /'qk_norm_type'/],
  ['minimax_m2', { shared_intermediate_size: 64 }, /'shared_intermediate_size'/],
  ['ernie4_5_moe', { use_bias: true }, /'use_bias'/],
  ['phimoe', { num_experts_per_tok: 1 }, /'num_experts_per_tok'/],
  ['hy_v3', { mlp_bias: true }, /'mlp_bias'/],
  ['hy_v3', { mlp_layer_types: ['dense'] }, /'mlp_layer_types' does not say what block 1 is/],
  ['exaone_moe', { mlp_layer_types: ['dense', 'thin'] }, /'mlp_layer_types' does not say what block 1 is/],
  ['exaone4', { layer_types: ['full_attention', 'chunked_attention'] }, /'layer_types'/],
  ['exaone4', { layer_types: null, sliding_window_pattern: 'LLLG' }, /'sliding_window_pattern' is not a number/],
  ['mimo_v2_flash', { hybrid_layer_pattern: [0, 2] }, /'hybrid_layer_pattern'/],
  ['mimo_v2_flash', { num_key_value_heads: 4 }, /'num_key_value_heads' does not divide/],
  ['smollm3', { no_rope_layers: [1] }, /'no_rope_layers' does not say whether block 1 rotates/],
  ['llama4_text', { layer_types: ['chunked_attention', 'sliding_attention'] }, /'layer_types'/],
  ['lfm2', { layer_types: ['conv'] }, /'layer_types' does not say what block 0 is/],
  ['lfm2', { layer_types: ['conv', 'mamba'] }, /'layer_types' does not say what block 1 is/],
  ['lfm2', { conv_L_cache: 1 }, /'conv_L_cache' is out of range/],
  ['falcon_h1', { mlp_multipliers: [1] }, /'mlp_multipliers' is not a pair of numbers/],
  ['falcon_h1', { ssm_multipliers: [1, 1] }, /'ssm_multipliers' has not one number a part/],
  ['falcon_h1', { key_multiplier: 0 }, /'key_multiplier' is not positive/],
  ['granitemoehybrid', { layer_types: null }, /'layer_types' does not say what block 0 is/],
  ['granitemoehybrid', { mamba_n_groups: 3 }, /'mamba_n_groups' does not divide the heads/],
  ['granitemoehybrid', { mamba_d_head: 'auto', mamba_n_heads: 7 }, /'mamba_d_head' cannot be told of the other sizes/],
  ['granitemoehybrid', { time_step_limit: [0.5, 0.1] }, /'time_step_limit' is not a pair of bounds/],
  ['granitemoehybrid', { time_step_limit: [0] }, /'time_step_limit' is not a pair of bounds/],
  ['jamba', { mamba_expand: 1.5 }, /'mamba_expand' is no count/],
  ['kimi_linear', { mla_use_nope: false }, /'mla_use_nope'/],
  ['kimi_linear', { linear_attn_config: { full_attn_layers: [2], kda_layers: [] } }, /does not say what block 0 is/],
  ['kimi_linear', { linear_attn_config: { kda_layers: [0] } }, /'kda_layers' counts a block that there cannot be/],
  ['kimi_linear', { linear_attn_config: null }, /'layer_types' does not say what block 0 is/],
  ['nemotron_h', { hybrid_override_pattern: 'ME?' }, /'hybrid_override_pattern' does not say what block 2 is/],
  [
    'nemotron_h',
    { layers_block_type: ['linear_attention', 'convolution'] },
    /'layer_types' does not say what block 1 is/,
  ],
  ['nemotron_h', { moe_latent_size: 0 }, /'moe_latent_size' is out of range/],
  ['lfm2_moe', { use_expert_bias: false }, /'use_expert_bias'/],
  ['qwen3_next', { attn_output_gate: false }, /'attn_output_gate'/],
  ['qwen3_5_text', { linear_num_value_heads: 3 }, /'linear_num_value_heads' is no multiple of linear_num_key_heads/],
  ['deepseek_v32', { q_lora_rank: null }, /'q_lora_rank' is missing: the indexer reads compressed queries/],
  ['deepseek_v32', { index_head_dim: 2 }, /'index_head_dim' is less than what turns of a head/],
  ['deepseek_v32', { index_topk: 0 }, /'index_topk' is out of range/],
  [
    'deepseek_v4',
    { layer_types: ['sliding_attention', 'full_attention'] },
    /'layer_types' does not say what block 1 is/,
  ],
  ['deepseek_v4', { compress_rates: null }, /'compress_rates' is missing/],
  [
    'deepseek_v4',
    { rope_parameters: { main: { rope_type: 'default' } } },
    /'rope_parameters' has no object 'compress'/,
  ],
  ['deepseek_v4', { layer_types: null, compress_ratios: [128, 8] }, /'compress_ratios' does not say what block 1 is/],
  ['deepseek_v4', { mlp_layer_types: null, num_hash_layers: -1 }, /'num_hash_layers' is out of range/],
  ['deepseek_v4', { qk_rope_head_dim: 2 }, /'qk_rope_head_dim' is not what partial_rotary_factor says/],
  ['deepseek_v4', { o_groups: 3 }, /'o_groups' does not divide num_attention_heads/],
  ['deepseek_v4', { hc_mult: 1 }, /'hc_mult' is out of range/],
  ['deepseek_v4', { mlp_layer_types: ['hash_moe', 'sparse'] }, /'mlp_layer_types' does not say how block 1 chooses/],
  ['deepseek_v4', { scoring_func: 'sigmoid' }, /'scoring_func'/],
  ['glm_moe_dsa', { indexer_types: ['shared', 'full', 'full'] }, /'indexer_types' gives block 0 no indexer/],
  ['glm_moe_dsa', { indexer_types: ['full', 'full'] }, /'indexer_types' does not say whether block 1 has an indexer/],
  ['minimax_m3_vl_text', { layer_types: ['full_attention'] }, /'layer_types' does not say what block 0 is/],
  ['minimax_m3_vl_text', { index_n_heads: 3 }, /'index_n_heads' does not divide the heads of attention/],
  ['minimax_m3_vl_text', { index_head_dim: 2 }, /'index_head_dim' is less than what turns of a head/],
  ['minimax_m3_vl_text', { moe_layer_freq: [0, 2] }, /'moe_layer_freq' does not say what block 1 is/],
  ['minimax_m3_vl_text', { use_qk_norm: false }, /'use_qk_norm'/],
  ['gemma', { use_bidirectional_attention: true }, /'use_bidirectional_attention'/],
  ['gemma4_text', { use_bidirectional_attention: 'all' }, /'use_bidirectional_attention'/],
  ['gemma4_text', { num_kv_shared_layers: 4 }, /'num_kv_shared_layers' is out of range/],
  ['gemma4_text', { num_kv_shared_layers: 3 }, /'layer_types' has no block like block 1 before block 1/],
  ['gemma4_text', { per_layer_config: { '1': { sliding_window: 4 } } }, /'per_layer_config' has a setting of block 1/],
  ['gemma4_text', { hidden_size_per_layer_input: -1 }, /'hidden_size_per_layer_input' is out of range/],
  ['gemma4_moe', { top_k_experts: 9 }, /'top_k_experts' exceeds the number of experts/],
  [
    'gemma4_moe',
    { num_kv_shared_layers: 1, layer_types: ['full_attention', 'full_attention'], use_double_wide_mlp: true },
    /'use_double_wide_mlp' is not known to lpq beside experts/,
  ],
  ['gemma3n_text', { altup_active_idx: 1 }, /'altup_active_idx'/],
  ['gemma3n_text', { altup_num_inputs: 1 }, /'altup_num_inputs' is out of range/],
  ['gemma3n_text', { activation_sparsity_pattern: [0.5] }, /'activation_sparsity_pattern' has no share for block 1/],
  ['gemma3n_text', { intermediate_size: [32] }, /'intermediate_size' has no count for block 1/],
  ['arcee', { hidden_act: 'xielu' }, /'hidden_act' is an activation that lpq does not know/],
  [
    'ministral3',
    { rope_parameters: { rope_type: 'yarn', factor: 4, llama_4_scaling_beta: 1, original_max_position_embeddings: 0 } },
    /'original_max_position_embeddings'/,
  ],
];

for (const [name, more, key] of CASES)
  test(`${name} with ${JSON.stringify(more)} is refused by the key`, () => {
    const config = { ...configOf(name), ...more };
    assert.throws(
      () => planModel(architectureOf(config, 'models/test'), config, 'models/test'),
      (error: unknown) => error instanceof LpqError && error.code === 'LPQ_CONFIG' && key.test(error.message),
    );
  });

test('a cache is refused a sequence of more than one chunk', async () => {
  const rt = createRuntime(1);
  const source = plainSource(path.join(ARCHITECTURES, 'llama4_text'));
  const graph = buildGraph(planModel(architectureOf(source.config, source.dir), source.config, source.dir));
  const outer = await loadOuter(rt, source, graph);
  const [state] = embedBatches(rt, graph, outer, [makeBatch(rt, [Int32Array.of(3, 4, 5, 6, 7, 8)])]);
  const block = graph.blocks[0]!;
  const weights = await loadWeights(rt, source, block.tensors.keys());
  await assert.rejects(
    runBlock(rt, block, weights, { ...state!, attend: () => assert.fail('asked') }),
    (error: unknown) =>
      error instanceof LpqError && error.code === 'LPQ_CONFIG' && /layers\.0.*one chunk/.test(error.message),
  );
  disposeWeights(weights);
});
