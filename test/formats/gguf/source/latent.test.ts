import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { GgufValue } from '../../../../formats/gguf/metadata.js';
import { GgufTensors } from '../../../../formats/gguf/source/tensors.js';
import { typed } from '../../../../native/binding.js';
import { designed, scratch } from '../../scratch.js';
import { EMBEDDING, madeIn, NORM, number, type Part, text } from './made.js';

/** llama.cpp's deepseek2: sizes of latent attention, and keys and values of the latent vector in halves. */

const dir = scratch();
let files = 0;
const float = (value: number): GgufValue => ({ type: 'f32', value });

/** Two heads of 2 keys, 1 value and 4 rotated elements, over a latent vector of 3. */
const DEEPSEEK2: Readonly<Record<string, GgufValue>> = {
  'general.architecture': text('deepseek2'),
  ...Object.fromEntries(
    Object.entries({
      ...{ embedding_length: 8, block_count: 1, feed_forward_length: 8, context_length: 16 },
      ...{
        'attention.head_count': 2,
        'attention.head_count_kv': 1,
        'attention.key_length': 7,
        'attention.value_length': 3,
      },
      ...{ 'attention.key_length_mla': 6, 'attention.value_length_mla': 1, 'attention.kv_lora_rank': 3 },
      ...{ 'rope.dimension_count': 4, expert_count: 8, expert_used_count: 2, expert_feed_forward_length: 8 },
    }).map(([key, value]) => [`deepseek2.${key}`, number(value)]),
  ),
  'deepseek2.attention.layer_norm_rms_epsilon': float(1e-6),
};
// Fastest first.
const K: Part = { name: 'blk.0.attn_k_b.weight', dims: [2, 3, 2] };
const V: Part = { name: 'blk.0.attn_v_b.weight', dims: [3, 1, 2] };

const open = (keys: Readonly<Record<string, GgufValue>>, ...parts: readonly Part[]): GgufTensors =>
  GgufTensors.open([madeIn(dir, { ...DEEPSEEK2, ...keys }, [EMBEDDING, NORM, ...parts], `${files++}.gguf`)]);

test('kv_b_proj is made of its halves, head by head the rows of keys and those of values', () => {
  // Elements of tensor i count up from 64 i.
  const model = open({}, K, V);
  const name = 'model.layers.0.self_attn.kv_b_proj.weight';
  assert.deepEqual(model.shape(name), [6, 3]);
  assert.deepEqual(
    [...typed<Float32Array>(model.tensor(name))],
    [
      ...[128, 130, 132],
      ...[129, 131, 133],
      ...[192, 193, 194],
      ...[134, 136, 138],
      ...[135, 137, 139],
      ...[195, 196, 197],
    ],
  );
  model.close();
});

test('halves of different types become F32', () => {
  // Read as BF16 the floats 128, 129, ... are 0, 128, 0, 129, ...: keys of even rows are 0.
  const model = open({}, { ...K, type: 30 }, V);
  const tensor = model.tensor('model.layers.0.self_attn.kv_b_proj.weight');
  assert.deepEqual(
    [...typed<Float32Array>(tensor)],
    [...[0, 0, 0], ...[128, 129, 130], ...[192, 193, 194], ...[0, 0, 0], ...[131, 132, 133], ...[195, 196, 197]],
  );
  model.close();
});

test('a half without the other, or of another size, is refused by name', () => {
  assert.throws(() => open({}, K), designed('LPQ_GGUF', /belong together.*got blk\.0\.attn_k_b/));
  assert.throws(() => open({}, V), designed('LPQ_GGUF', /belong together.*got blk\.0\.attn_v_b/));
  const wide = { ...K, dims: [3, 3, 2] };
  assert.throws(
    () => open({}, wide, V),
    designed('LPQ_GGUF', /attn_k_b\.weight' does not have the shape.*\[2,3,3\].*\[2,3,2\]/),
  );
  const whole: Part = { name: 'blk.0.attn_kv_b.weight', dims: [3, 6] };
  assert.throws(
    () => open({}, K, V, whole),
    designed('LPQ_GGUF', /two of its tensors are 'model\.layers\.0\.self_attn\.kv_b_proj\.weight'/),
  );
});

test('V2 and V3 are told apart by the shares of their experts; YaRN and groups have their words', () => {
  const yarn = {
    'deepseek2.rope.scaling.type': text('yarn'),
    'deepseek2.rope.scaling.factor': float(40),
    'deepseek2.rope.scaling.original_context_length': number(4096),
    'deepseek2.rope.scaling.yarn_log_multiplier': float(0.08),
    'deepseek2.expert_group_count': number(4),
    'deepseek2.expert_group_used_count': number(2),
  };
  const v2 = open(yarn, K, V);
  const { rope_scaling, ...config } = v2.model.config;
  assert.deepEqual(rope_scaling, {
    ...{ rope_type: 'yarn', factor: 40, original_max_position_embeddings: 4096 },
    ...{ mscale: 0.8, mscale_all_dim: 0.8 },
  });
  assert.deepEqual(
    [
      'model_type',
      'qk_nope_head_dim',
      'qk_rope_head_dim',
      'v_head_dim',
      'q_lora_rank',
      'topk_method',
      'n_group',
      'topk_group',
    ].map((key) => config[key]),
    ['deepseek_v2', 2, 4, 1, null, 'group_limited_greedy', 4, 2],
  );
  v2.close();
  const v3 = open({ 'deepseek2.expert_gating_func': number(2) }, K, V);
  assert.deepEqual([v3.model.config.model_type, v3.model.config.n_group], ['deepseek_v3', 1]);
  v3.close();
});
