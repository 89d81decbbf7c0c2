import assert from 'node:assert/strict';
import test from 'node:test';
import { LpqError } from '../../../src/core/error.js';
import { architectureOf } from '../../../src/model/architectures/index.js';
import { type AttentionPlan, type ModelPlan, planModel } from '../../../src/model/plan.js';
import { CONFIGS } from './configs.js';

const plan = (config: Record<string, unknown>) =>
  planModel(architectureOf(config, 'models/test'), config, 'models/test');
const attention = (model: ModelPlan, block = 0): AttentionPlan => {
  const plan = model.blocks[block]?.attention;
  assert.ok(plan?.kind === 'attention');
  return plan;
};
const windows = (config: Record<string, unknown>) => {
  const model = plan(config);
  return model.blocks.map((_, block) => attention(model, block).window);
};
const rejects = (config: Record<string, unknown>, code: string, words: RegExp) =>
  assert.throws(
    () => plan(config),
    (error) => error instanceof LpqError && error.code === code && words.test(error.message),
  );

test('old and new RoPE keys give the same plan', () => {
  const { rope_parameters: _, ...old } = CONFIGS.llama!;
  const scalings = [
    { rope_type: 'default' },
    { rope_type: 'linear', factor: 4 },
    { rope_type: 'llama3', factor: 8, low_freq_factor: 1, high_freq_factor: 4, original_max_position_embeddings: 64 },
    { rope_type: 'yarn', factor: 4, original_max_position_embeddings: 64, beta_fast: 16, truncate: false },
    { rope_type: 'dynamic', factor: 2 },
  ];
  for (const scaling of scalings) {
    const modern = plan({ ...old, rope_parameters: { ...scaling, rope_theta: 5e5 } });
    const { rope_type: type, ...rest } = scaling;
    assert.deepEqual(plan({ ...old, rope_theta: 5e5, rope_scaling: scaling }), modern);
    assert.deepEqual(plan({ ...old, rope_theta: 5e5, rope_scaling: { type, ...rest } }), modern);
    assert.equal(attention(modern).rope.theta, 5e5);
    assert.equal(attention(modern).rope.scaling.kind, scaling.rope_type);
  }
  assert.deepEqual(plan({ ...old, rope_theta: 5e5, rope_scaling: null }), plan({ ...old, rope_theta: 5e5 }));
  // Llama 1 and 2 wrote no theta at all.
  assert.deepEqual(plan(old), plan(CONFIGS.llama!));
});

test('head_dim, kv heads and tying: stated, null and absent', () => {
  const { num_key_value_heads: _, ...config } = CONFIGS.llama!;
  assert.deepEqual(plan({ ...CONFIGS.llama, head_dim: 16 }), plan(CONFIGS.llama!));
  assert.deepEqual(plan({ ...CONFIGS.llama, head_dim: null }), plan(CONFIGS.llama!));
  assert.equal(attention(plan(config)).kvHeads, 4);
  assert.equal(attention(plan({ ...CONFIGS.qwen3, head_dim: undefined })).headDim, 128);
  const tied = plan({ ...CONFIGS.llama, tie_word_embeddings: true });
  assert.equal(`${tied.head.name}.weight`, tied.embedding);
});

test('an architecture without model_type is known by its class', () => {
  assert.deepEqual(plan({ ...CONFIGS.qwen2, model_type: undefined }), plan(CONFIGS.qwen2!));
});

test('biases: from the config in llama and qwen3, fixed in qwen2 and mistral', () => {
  const biases = (config: Record<string, unknown>) => {
    const { q, k, v, o } = attention(plan(config));
    return [q, k, v, o].map((linear) => linear.bias);
  };
  for (const name of ['llama', 'qwen3', 'qwen3_moe']) {
    assert.deepEqual(biases(CONFIGS[name]!), [false, false, false, false]);
    assert.deepEqual(biases({ ...CONFIGS[name], attention_bias: true }), [true, true, true, true]);
  }
  assert.deepEqual(biases({ ...CONFIGS.qwen2, attention_bias: false }), [true, true, true, false]);
  assert.deepEqual(biases({ ...CONFIGS.mistral, attention_bias: true }), [false, false, false, false]);
});

test('windows: which blocks have one, and of what size', () => {
  assert.deepEqual(windows(CONFIGS.llama!), [0, 0, 0, 0]);
  assert.deepEqual(windows({ ...CONFIGS.llama, sliding_window: 8 }), [0, 0, 0, 0]);
  assert.deepEqual(windows(CONFIGS.mistral!), [8, 8, 8, 8]);
  assert.deepEqual(windows({ ...CONFIGS.mistral, sliding_window: null }), [0, 0, 0, 0]);
  assert.deepEqual(windows({ ...CONFIGS.mistral, sliding_window: undefined }), [4096, 4096, 4096, 4096]);
  for (const name of ['qwen2', 'qwen3']) {
    const config = { ...CONFIGS[name], sliding_window: 16, max_window_layers: 2 };
    assert.deepEqual(windows({ ...config, use_sliding_window: false }), [0, 0, 0, 0]);
    assert.deepEqual(windows({ ...config, use_sliding_window: true }), [0, 0, 16, 16]);
    const layer_types = ['sliding_attention', 'full_attention', 'sliding_attention', 'full_attention'];
    assert.deepEqual(windows({ ...config, use_sliding_window: true, layer_types }), [16, 0, 16, 0]);
    rejects({ ...config, use_sliding_window: true, layer_types: ['full_attention'] }, 'LPQ_CONFIG', /layer_types/);
  }
  assert.deepEqual(windows({ ...CONFIGS.qwen3_moe, use_sliding_window: true, sliding_window: 16 }), [16, 16, 16, 16]);
});

test('experts: which blocks, how many, under either key', () => {
  const kinds = (config: Record<string, unknown>) => plan(config).blocks.map((block) => block.mlp.kind);
  assert.deepEqual(kinds(CONFIGS.qwen3_moe!), ['experts', 'experts', 'experts', 'experts']);
  assert.deepEqual(kinds({ ...CONFIGS.qwen3_moe, decoder_sparse_step: 2 }), ['gated', 'experts', 'gated', 'experts']);
  assert.deepEqual(kinds({ ...CONFIGS.qwen3_moe, mlp_only_layers: [0, 3] }), ['gated', 'experts', 'experts', 'gated']);
  const { num_experts, ...rest } = CONFIGS.qwen3_moe!;
  assert.deepEqual(plan({ ...rest, num_local_experts: num_experts }), plan(CONFIGS.qwen3_moe!));
  const mlp = plan(CONFIGS.qwen3_moe!).blocks[1]!.mlp;
  assert.ok(mlp.kind === 'experts');
  assert.equal(mlp.experts[7]!.down.name, 'model.layers.1.mlp.experts.7.down_proj');
  rejects({ ...CONFIGS.qwen3_moe, num_experts_per_tok: 9 }, 'LPQ_CONFIG', /num_experts_per_tok/);
});

test('a config that cannot be read is refused with the key and the directory', () => {
  const llama = CONFIGS.llama!;
  rejects({ ...llama, model_type: 'mamba' }, 'LPQ_ARCH_UNKNOWN', /models\/test/);
  rejects({ ...llama, architectures: ['LlamaForSequenceClassification'] }, 'LPQ_ARCH_UNKNOWN', /no table/);
  rejects({}, 'LPQ_ARCH_UNKNOWN', /config.json/);
  rejects({ ...llama, hidden_size: undefined }, 'LPQ_CONFIG', /hidden_size/);
  rejects({ ...llama, hidden_size: '64' }, 'LPQ_CONFIG', /hidden_size/);
  rejects({ ...llama, num_attention_heads: 3 }, 'LPQ_CONFIG', /num_key_value_heads/);
  rejects({ ...llama, num_attention_heads: 6 }, 'LPQ_CONFIG', /head_dim/);
  rejects({ ...llama, num_hidden_layers: 1.5 }, 'LPQ_CONFIG', /num_hidden_layers/);
  rejects({ ...llama, num_hidden_layers: 1e9 }, 'LPQ_CONFIG', /num_hidden_layers/);
  rejects({ ...CONFIGS.qwen3_moe, num_experts: 1e9 }, 'LPQ_CONFIG', /num_experts/);
  rejects({ ...llama, hidden_act: 'relu6' }, 'LPQ_CONFIG', /hidden_act/);
  rejects({ ...llama, hidden_act: 'constructor' }, 'LPQ_CONFIG', /hidden_act/);
  rejects({ ...llama, attention_bias: 'yes' }, 'LPQ_CONFIG', /attention_bias/);
  rejects({ ...llama, rope_parameters: { rope_type: 'longrope' } }, 'LPQ_CONFIG', /rope_type/);
  rejects({ ...llama, rope_parameters: { rope_type: 'linear' } }, 'LPQ_CONFIG', /factor/);
  rejects({ ...llama, rope_parameters: [] }, 'LPQ_CONFIG', /rope_parameters/);
  rejects({ ...llama, partial_rotary_factor: 0.1 }, 'LPQ_CONFIG', /partial_rotary_factor/);
  assert.throws(
    () => plan({ model_type: 'rwkv' }),
    (error) => error instanceof LpqError && /llama.*qwen3_moe/.test(String(error.expected)),
  );
});
