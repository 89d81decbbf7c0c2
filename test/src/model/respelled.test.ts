import assert from 'node:assert/strict';
import path from 'node:path';
import test from 'node:test';
import { createRuntime, fromTyped, typed } from '../../../native/binding.js';
import { makeBatch } from '../../../src/model/batch.js';
import { loadOuter, runForward } from '../../../src/model/forward.js';
import { openModel, planSource } from '../../../src/model/graph.js';
import type { WeightSource } from '../../../src/model/source.js';
import { ARCHITECTURES, PlainFile, plainSource } from './fixtures.js';

/** Checkpoints as transformers saves them again, with names and cuts that the published ones do not have. */

const rt = createRuntime(2);
const fixture = (name: string) => plainSource(path.join(ARCHITECTURES, name));

/** Whether the first tokens of the golden give its logits. */
async function difference(source: WeightSource, name: string): Promise<number> {
  const golden = new PlainFile(path.join(ARCHITECTURES, name, 'golden.safetensors'));
  const ids = typed<Int32Array>(golden.tensor('input_ids'));
  const batch = makeBatch(rt, [ids.slice(0, ids.length / 2), ids.slice(ids.length / 2)]);
  const graph = openModel(source);
  const outer = await loadOuter(rt, source, graph);
  const [state] = await runForward(rt, source, graph, outer, [batch]);
  const logits = graph.logits(rt, outer, state!.h);
  await rt.sync();
  const want = typed<Float32Array>(golden.tensor('logits'));
  return typed<Float32Array>(logits).reduce((most, value, i) => Math.max(most, Math.abs(value - want[i]!)), 0);
}

function renamed(source: WeightSource, from: RegExp, to: string): WeightSource {
  const names = new Map([...source.names()].map((name) => [name.replace(from, to), name]));
  return {
    ...source,
    names: () => names.keys(),
    has: (name) => names.has(name),
    shape: (name) => source.shape(names.get(name)!),
    tensor: (name) => source.tensor(names.get(name)!),
  };
}

test('olmo_hybrid: convolutions cut in equal parts, and one name for two norms', async () => {
  const whole = renamed(fixture('olmo_hybrid'), /post_attention_layernorm/, 'feedforward_layer_norm');
  const cuts = ['q', 'k', 'v'].map((part) => `model.layers.0.linear_attn.${part}_conv1d.weight`);
  const parts = await Promise.all(cuts.map(async (name) => Array.from(typed<Uint16Array>(await whole.tensor(name)))));
  const all = parts.flat();
  // 64, 64 and 96 channels of 4 taps.
  assert.deepEqual(
    parts.map(({ length }) => length / 4),
    [64, 64, 96],
  );
  const rows = [75, 75, 74];
  const source: WeightSource = {
    ...whole,
    shape: (name) => (cuts.includes(name) ? [rows[cuts.indexOf(name)]!, 1, 4] : whole.shape(name)),
    tensor: async (name) => {
      const at = cuts.indexOf(name);
      if (at < 0) return whole.tensor(name);
      const first = 4 * 75 * at;
      return fromTyped('bf16', [rows[at]!, 1, 4], Uint16Array.from(all.slice(first, first + 4 * rows[at]!)));
    },
  };
  assert.ok((await difference(source, 'olmo_hybrid')) <= 1e-4);
});

test('kimi_linear: the MLP of blocks without experts under the name of experts', async () => {
  const source = renamed(fixture('kimi_linear'), /\.mlp\.(\w+_proj)/, '.block_sparse_moe.$1');
  assert.ok((await difference(source, 'kimi_linear')) <= 1e-4);
});

test('kimi_linear: settings of linear attention in an object, or outside as transformers writes them', () => {
  const source = fixture('kimi_linear');
  const { linear_attn_config: _, first_k_dense_replace: __, ...rest } = source.config;
  const config = {
    ...rest,
    linear_head_dim: 16,
    linear_num_heads: 2,
    linear_conv_kernel_dim: 4,
    layer_types: ['linear_attention', 'full_attention'],
    mlp_layer_types: ['dense', 'sparse'],
  };
  assert.deepEqual(planSource({ ...source, config }), planSource(source));
});

test('olmo_hybrid: a theta that is no null turns queries and keys', () => {
  const source = fixture('olmo_hybrid');
  const rope = (more: object) => {
    const { attention } = planSource({ ...source, config: { ...source.config, ...more } }).blocks[1]!;
    return attention.kind === 'attention' ? attention.rope?.theta : 'no attention';
  };
  assert.equal(rope({}), undefined);
  assert.equal(rope({ rope_parameters: { rope_type: 'default' }, rope_theta: null }), undefined);
  assert.equal(rope({ rope_parameters: null }), 10_000);
  assert.equal(rope({ rope_parameters: { rope_type: 'default', rope_theta: 5e5 } }), 5e5);
});
