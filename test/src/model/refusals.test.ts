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
  ['gemma', { use_bidirectional_attention: true }, /'use_bidirectional_attention'/],
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
