import assert from 'node:assert/strict';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import type { CanonicalManifest } from '../../../../formats/canonical/schema.js';
import { writeSafetensors } from '../../../../formats/safetensors/write.js';
import { events, lpq, scratch } from '../lpq.js';

/** A Llama of one block with these widths. */
async function made(dir: string, name: string, hidden: number, intermediate: number): Promise<string> {
  const to = path.join(dir, name);
  mkdirSync(to);
  const config = {
    ...{ architectures: ['LlamaForCausalLM'], model_type: 'llama', vocab_size: 32, hidden_size: hidden },
    ...{ intermediate_size: intermediate, num_attention_heads: 2, num_key_value_heads: 2, num_hidden_layers: 1 },
    ...{ tie_word_embeddings: true, rms_norm_eps: 1e-6, max_position_embeddings: 64 },
  };
  writeFileSync(path.join(to, 'config.json'), JSON.stringify(config));
  const tensor = (tensorName: string, ...shape: number[]) => {
    const data = Float32Array.from(
      { length: shape.reduce((a, b) => a * b, 1) },
      (_, i) => ((i * 37 + tensorName.length) % 101) / 101 - 0.5,
    );
    return { name: tensorName, dtype: 'F32' as const, shape, data };
  };
  const block = 'model.layers.0';
  await writeSafetensors(path.join(to, 'model.safetensors'), [
    tensor('model.embed_tokens.weight', 32, hidden),
    tensor('model.norm.weight', hidden),
    tensor(`${block}.input_layernorm.weight`, hidden),
    tensor(`${block}.post_attention_layernorm.weight`, hidden),
    ...['q', 'k', 'v', 'o'].map((each) => tensor(`${block}.self_attn.${each}_proj.weight`, hidden, hidden)),
    ...['gate', 'up'].map((each) => tensor(`${block}.mlp.${each}_proj.weight`, intermediate, hidden)),
    tensor(`${block}.mlp.down_proj.weight`, hidden, intermediate),
  ]);
  return to;
}

const manifestOf = (dir: string) => JSON.parse(readFileSync(path.join(dir, 'lpq.json'), 'utf8')) as CanonicalManifest;
const sizes = (dir: string) =>
  new Set(Object.values(manifestOf(dir).modules).map(({ granularity: g }) => (g.kind === 'group' ? g.size : g.kind)));

test('the default group size suits the model: the largest of 128, 64 and 32 that divides every module', async (t) => {
  const dir = scratch(t);
  for (const [hidden, intermediate, size] of [
    [128, 256, 128],
    [576, 1536, 64],
    [352, 1024, 32],
  ] as const) {
    const model = await made(dir, `m${hidden}`, hidden, intermediate);
    const out = path.join(dir, `q${hidden}`);
    const ran = await lpq(['quantize', model, '-o', out, '--bits', '4', '--method', 'rtn', '--no-report']);
    assert.equal(ran.code, 0, ran.stderr);
    assert.deepEqual(sizes(out), new Set([size]));
    if (size === 128) assert.doesNotMatch(ran.stderr, /groups of/);
    else assert.match(ran.stderr, new RegExp(`^groups of ${size}: 128 does not divide ${hidden} input features$`, 'm'));
    assert.equal(manifestOf(out).provenance.options.groupSize, size === 128 ? undefined : size);
  }
});

test('the default group size suits the model: what no size divides stays in 16 bits, by name', async (t) => {
  const dir = scratch(t);
  const model = await made(dir, 'm', 192, 200);
  const out = path.join(dir, 'q');
  const ran = await lpq(['quantize', model, '-o', out, '--bits', '4', '--method', 'rtn', '--no-report']);
  assert.equal(ran.code, 0, ran.stderr);
  assert.match(ran.stderr, /a module stays in 16 bits.*: model\.layers\.0\.mlp\.down_proj; --group-size channel/);
  assert.deepEqual(sizes(out), new Set([64]));
  assert.ok(Object.hasOwn(manifestOf(out).carried, 'model.layers.0.mlp.down_proj.weight'));
});

test('the default group size suits the model: rules of a recipe take it too, types with groups of their own keep them', async (t) => {
  const dir = scratch(t);
  const model = await made(dir, 'm', 576, 200);
  const recipe = path.join(dir, 'recipe.json');
  const rules = [
    { match: 'down_proj', bits: 8, groupSize: 'channel' },
    { match: 'o_proj', bits: 8 },
    { match: 'v_proj', dtype: 'mxfp4' },
    { match: 'k_proj', dtype: 'f8e4m3' },
  ];
  writeFileSync(recipe, JSON.stringify({ method: 'rtn', rules }));
  const out = path.join(dir, 'q');
  const ran = await lpq(['quantize', model, '-o', out, '--bits', '4', '--recipe', recipe, '--no-report']);
  assert.equal(ran.code, 0, ran.stderr);
  const of = (name: string) => manifestOf(out).modules[`model.layers.0.${name}`]?.granularity;
  assert.deepEqual(of('self_attn.q_proj'), { kind: 'group', size: 64 });
  assert.deepEqual(of('self_attn.o_proj'), { kind: 'group', size: 64 });
  assert.deepEqual(of('self_attn.v_proj'), { kind: 'group', size: 32 });
  assert.deepEqual(of('self_attn.k_proj'), { kind: 'channel' });
  assert.deepEqual(of('mlp.down_proj'), { kind: 'channel' });
});

test('a group size that was asked for and does not fit: how many modules, which kinds, and the size that does', async (t) => {
  const dir = scratch(t);
  const model = await made(dir, 'm', 576, 1536);
  const args = ['quantize', model, '-o', path.join(dir, 'q'), '--bits', '4', '--method', 'rtn', '--group-size', '128'];
  const ran = await lpq(args);
  assert.equal(ran.code, 2);
  assert.match(ran.stderr, /128 do not divide the 576 input features of .*q_proj, nor those of 5 other modules of 7/);
  assert.match(ran.stderr, /128; q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj \(K = 576\): 6 modules/);
  assert.match(ran.stderr, /expected {2}64, 32 or channel; each divides every module\n.*Use --group-size 64/);
  const [first, second] = events(await lpq([...args, '--dry-run', '--json']));
  assert.match(String(first?.message), /nor those of 5 other modules of 7\. Use --group-size 64/);
  assert.equal(second?.event, 'result');
});
