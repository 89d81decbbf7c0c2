import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { LpqError } from '../../../src/core/error.js';
import { architectureOf } from '../../../src/model/architectures/index.js';
import { planModel } from '../../../src/model/plan.js';
import { ARCHITECTURES } from './fixtures.js';

const plan = (config: Record<string, unknown>) => planModel(architectureOf(config, 'dir'), config, 'dir');

const ours = JSON.parse(readFileSync(path.join(ARCHITECTURES, 'mimo_v2_flash', 'config.json'), 'utf8')) as Record<
  string,
  unknown
>;
const { layer_types: _, mlp_layer_types: __, rope_parameters: ___, rms_norm_eps: epsilon, ...rest } = ours;

/** The fixture in the keys of MiMo-V2-Flash's authors, whose checkpoint its golden is computed of in the keys of transformers. */
const published: Record<string, unknown> = {
  ...rest,
  hybrid_layer_pattern: [0, 1],
  moe_layer_freq: [0, 1],
  layernorm_epsilon: epsilon,
  rope_theta: 5_000_000,
  swa_rope_theta: 10_000,
  partial_rotary_factor: 0.334,
  sliding_window_size: ours.sliding_window,
  swa_num_attention_heads: ours.num_attention_heads,
  swa_num_key_value_heads: 2 * Number(ours.num_key_value_heads),
  swa_head_dim: ours.head_dim,
  swa_v_head_dim: ours.v_head_dim,
  add_swa_attention_sink_bias: true,
  add_full_attention_sink_bias: false,
  n_shared_experts: null,
  routed_scaling_factor: null,
};

test("MiMo-V2-Flash: the authors' keys give the plan of transformers' keys", () => {
  assert.deepEqual(plan(published), plan(ours));
  const turned = { ...published, hybrid_layer_pattern: [1, 0], moe_layer_freq: [1, 0] };
  const types = { layer_types: ['sliding_attention', 'full_attention'], mlp_layer_types: ['sparse', 'dense'] };
  assert.deepEqual(plan(turned), plan({ ...ours, ...types }));
  const slower = { ...published, swa_rope_theta: 20_000, partial_rotary_factor: 0.5 };
  const theta = (value: number) => ({ rope_type: 'default', rope_theta: value, partial_rotary_factor: 0.5 });
  const parameters = { full_attention: theta(5_000_000), sliding_attention: theta(20_000) };
  assert.deepEqual(plan(slower), plan({ ...ours, rope_parameters: parameters }));
});

test("MiMo-V2-Flash: authors' keys that say what the graph does not compute are refused by name", () => {
  for (const [change, words] of [
    [{ hybrid_layer_pattern: [0, 2] }, /'hybrid_layer_pattern' does not say what block 1 is/],
    [{ moe_layer_freq: [0] }, /'mlp_layer_types'/],
    [{ swa_num_key_value_heads: 2 }, /'swa_num_key_value_heads' is not 2 times num_key_value_heads/],
    [{ swa_head_dim: 64 }, /'swa_head_dim' is not head_dim/],
    [{ add_full_attention_sink_bias: true }, /'add_full_attention_sink_bias'/],
  ] as const)
    assert.throws(
      () => plan({ ...published, ...change }),
      (error) => error instanceof LpqError && error.code === 'LPQ_CONFIG' && words.test(error.message),
      JSON.stringify(change),
    );
});
