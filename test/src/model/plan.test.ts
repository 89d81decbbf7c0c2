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
    assert.equal(attention(modern).rope?.theta, 5e5);
    assert.equal(attention(modern).rope?.scaling.kind, scaling.rope_type);
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
  assert.equal(`${tied.head.name}.weight`, tied.embedding.weight);
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

test('mixtures: groups, scoring, shared experts and dense blocks as published configs say them', () => {
  const mixture = (config: Record<string, unknown>, block = 3) => {
    const { mlp } = plan(config).blocks[block]!;
    assert.ok(mlp.kind === 'experts');
    return mlp;
  };
  const routing = (config: Record<string, unknown>) => mixture(config).routing;
  const [v2, v3] = [CONFIGS.deepseek_v2!, CONFIGS.deepseek_v3!];
  assert.deepEqual(routing(v3), {
    perToken: 2,
    sigmoid: true,
    normalize: true,
    scale: 2.5,
    groups: 2,
    topGroups: 1,
    topTwo: true,
    weighInput: false,
    jitter: 0,
    bias: { name: 'model.layers.3.mlp.gate.e_score_correction_bias', shape: [8] },
  });
  const soft = {
    perToken: 2,
    sigmoid: false,
    normalize: false,
    scale: 16,
    topTwo: false,
    weighInput: false,
    jitter: 0,
    bias: undefined,
  };
  assert.deepEqual(routing(v2), { ...soft, groups: 4, topGroups: 2 });
  // V2-Lite: topk_method greedy, and groups that mean nothing.
  assert.deepEqual(routing({ ...v2, topk_method: 'greedy', n_group: 1, topk_group: 1 }), {
    ...soft,
    groups: 1,
    topGroups: 1,
  });
  assert.equal(routing({ ...v3, scoring_func: 'softmax' }).sigmoid, false);
  assert.equal(mixture(v2).shared?.intermediate, 2 * 48);
  assert.equal(mixture({ ...v3, n_shared_experts: null }).shared, undefined);
  assert.equal(mixture(CONFIGS.qwen2_moe!).shared?.outputGate?.name, 'model.layers.3.mlp.shared_expert_gate');
  assert.deepEqual(mixture(CONFIGS.gpt_oss!).gate, { kind: 'clamped', alpha: 1.702, limit: 7 });
  assert.deepEqual(mixture({ ...CONFIGS.gpt_oss, swiglu_limit: 5 }).gate, { kind: 'clamped', alpha: 1.702, limit: 5 });
  assert.equal(mixture(CONFIGS.mixtral!).experts[5]!.up.name, 'model.layers.3.block_sparse_moe.experts.5.w3');
  const kinds = (config: Record<string, unknown>) => plan(config).blocks.map(({ mlp }) => mlp.kind);
  assert.deepEqual(kinds({ ...v3, first_k_dense_replace: 2 }), ['gated', 'gated', 'experts', 'experts']);
  assert.deepEqual(kinds({ ...v3, moe_layer_freq: 2 }), ['experts', 'gated', 'experts', 'gated']);
  rejects({ ...v3, n_group: 3 }, 'LPQ_CONFIG', /n_group.*does not divide/);
  rejects({ ...v3, n_group: 8, topk_group: 4 }, 'LPQ_CONFIG', /n_group.*groups of one/);
  rejects({ ...v3, topk_group: 3 }, 'LPQ_CONFIG', /topk_group/);
  rejects({ ...v3, num_experts_per_tok: 5 }, 'LPQ_CONFIG', /num_experts_per_tok.*exceeds/);
  rejects({ ...v3, scoring_func: 'relu' }, 'LPQ_CONFIG', /scoring_func/);
  rejects({ ...v2, topk_method: 'noaux_tc' }, 'LPQ_CONFIG', /topk_method/);
  rejects({ ...CONFIGS.gpt_oss, swiglu_limit: 0 }, 'LPQ_CONFIG', /swiglu_limit/);
});

test('windows of mixtures; sinks', () => {
  assert.deepEqual(windows(CONFIGS.gpt_oss!), [3, 0, 3, 0]);
  const layer_types = ['full_attention', 'full_attention', 'full_attention', 'sliding_attention'];
  assert.deepEqual(windows({ ...CONFIGS.gpt_oss, layer_types }), [0, 0, 0, 3]);
  assert.deepEqual(windows(CONFIGS.qwen2_moe!), [0, 0, 0, 0]);
  const sliding = { ...CONFIGS.qwen2_moe, use_sliding_window: true, sliding_window: 16, max_window_layers: 2 };
  assert.deepEqual(windows(sliding), [16, 0, 0, 0]);
  assert.deepEqual(windows({ ...CONFIGS.mixtral, sliding_window: 9 }), [9, 9, 9, 9]);
  assert.deepEqual(windows(CONFIGS.mixtral!), [0, 0, 0, 0]);
  assert.equal(attention(plan(CONFIGS.gpt_oss!), 2).sinks, 'model.layers.2.self_attn.sinks');
});

test('latent attention: scales, ranks and what is refused', () => {
  const latent = (config: Record<string, unknown>) => {
    const plan_ = plan(config).blocks[0]!.attention;
    assert.ok(plan_.kind === 'mla');
    return plan_;
  };
  const v3 = CONFIGS.deepseek_v3!;
  assert.equal(latent(v3).query.kind, 'latent');
  assert.equal(latent(CONFIGS.deepseek_v2!).query.kind, 'direct');
  assert.equal(latent(v3).scale, 1 / Math.sqrt(20));
  assert.equal(latent(v3).rope!.style, 'interleaved');
  assert.equal(latent({ ...v3, rope_interleave: false }).rope!.style, 'half');
  // DeepSeek-V3's own: cos and sin as they are, scores times (0.1 ln 40 + 1)^2
  const rope_scaling = {
    type: 'yarn',
    factor: 40,
    mscale: 1,
    mscale_all_dim: 1,
    original_max_position_embeddings: 4096,
  };
  const { rope_parameters: _, ...old } = v3;
  const yarn = latent({ ...old, rope_theta: 10_000, rope_scaling });
  assert.ok(Math.abs(yarn.scale * Math.sqrt(20) - 1.873_854_207) < 1e-9);
  assert.ok(yarn.rope!.scaling.kind === 'yarn' && yarn.rope!.scaling.attention === 1);
  for (const num_key_value_heads of [1, 2, 128])
    assert.deepEqual(latent({ ...v3, num_key_value_heads }), latent(v3), 'every head has a key of its own');
  rejects({ ...v3, kv_lora_rank: undefined }, 'LPQ_CONFIG', /kv_lora_rank/);
  rejects({ ...v3, qk_rope_head_dim: 7 }, 'LPQ_CONFIG', /'qk_rope_head_dim' is odd/);
});

test('an unknown architecture is answered with the nearest one and the keys that it does not read', () => {
  const told = (config: Record<string, unknown>): string => {
    try {
      plan(config);
    } catch (error) {
      assert.ok(error instanceof LpqError && error.code === 'LPQ_ARCH_UNKNOWN' && /CONTRIBUTING/.test(`${error.hint}`));
      return String(error.expected);
    }
    return assert.fail('the config makes a plan');
  };
  const { qwen3_moe: moe = {}, llama = {} } = CONFIGS;
  const next = { ...moe, model_type: 'qwen4_moe', architectures: ['Qwen4MoeForCausalLM'] };
  assert.match(told(next), /nearest to config.json is qwen3_moe \(Qwen3MoeForCausalLM\): it reads every key$/);
  assert.match(
    told({ ...next, gate_sharpness: 2, use_sinks: true }),
    /it does not read 'gate_sharpness', 'use_sinks'$/,
  );
  const small = { ...llama, model_type: 'llamas', architectures: undefined, hidden_size: undefined };
  assert.match(told(small), /nearest to config.json is llama .*lacks 'hidden_size'/);
  // By its keys alone, and by those of the language model inside.
  assert.match(told({ ...llama, model_type: 'zephyrion' }), /nearest to config.json is \w+/);
  const inside = { model_type: 'seer_vl', text_config: { ...moe, model_type: 'seer_moe' }, vision_config: {} };
  assert.match(told(inside), /nearest to config.json is qwen3_moe/);
  // A class that is known, with a language model inside that is not.
  const mistral3 = { model_type: 'mistral3', text_config: { ...llama, model_type: 'mistrall' } };
  assert.match(told(mistral3), /nearest to config.json is mistral /);
});

test('a config that cannot be read is refused with the key and the directory', () => {
  const llama = CONFIGS.llama!;
  rejects({ ...llama, model_type: 'mamba' }, 'LPQ_ARCH_UNKNOWN', /models\/test/);
  rejects({ ...llama, architectures: ['LlamaForSequenceClassification'] }, 'LPQ_ARCH_UNKNOWN', /does not know/);
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
  rejects({ ...llama, rope_parameters: { rope_type: 'spiral' } }, 'LPQ_CONFIG', /rope_type/);
  rejects(
    { ...llama, rope_parameters: { rope_type: 'longrope', short_factor: [1], long_factor: [1] } },
    'LPQ_CONFIG',
    /short_factor/,
  );
  rejects({ ...llama, rope_parameters: { rope_type: 'linear' } }, 'LPQ_CONFIG', /factor/);
  rejects({ ...llama, rope_parameters: [] }, 'LPQ_CONFIG', /rope_parameters/);
  // Llama's class rotates whole heads whatever this key says, and fails where positions are scaled too.
  const half = { ...llama, partial_rotary_factor: 0.5 };
  assert.deepEqual(plan(half), plan(llama));
  const linear = { rope_type: 'linear', factor: 2 };
  rejects({ ...half, rope_parameters: linear }, 'LPQ_CONFIG', /partial_rotary_factor/);
  rejects({ ...llama, model_type: 'glm4', partial_rotary_factor: 0.01 }, 'LPQ_CONFIG', /partial_rotary_factor/);
  assert.throws(
    () => plan({ model_type: 'rwkv' }),
    (error) => error instanceof LpqError && /llama.*qwen3_moe/.test(String(error.expected)),
  );
});
