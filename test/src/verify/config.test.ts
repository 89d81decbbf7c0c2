// Configurations of targets whose bytes other tests make: what is claimed, left out, and stated.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { ArtifactManifest, PackedModule } from '../../../formats/artifact/schema.js';
import { Patterns } from '../../../src/core/patterns.js';
import { checkConfig } from '../../../src/verify/config.js';
import type { Linear, ModelLinears } from '../../../src/verify/linears.js';
import { Recorder } from '../../../src/verify/report.js';
import { PROVENANCE } from './build.js';
import type { Json } from './changed.js';

const HASH = '0'.repeat(64);
const module = (over: Partial<PackedModule>): PackedModule => ({
  type: 'i4',
  shape: [16, 128],
  padded: [16, 128],
  granularity: { kind: 'group', size: 64 },
  scales: { dtype: 'f16', block: [1, 64], global: false },
  zeros: { kind: 'none' },
  layout: 'awq',
  notes: [],
  tensors: {},
  canonical: { codes: HASH, scales: HASH },
  ...over,
});

/** Messages about a model of packed `modules` and of `plain` linears, `lm_head` among either. */
function messages(target: string, modules: Record<string, PackedModule>, plain: string[], config: Json, mirror?: Json) {
  const manifest: ArtifactManifest = {
    ...{ format: 'lpq-artifact', version: 1, target, modules, carried: {}, files: {} },
    provenance: PROVENANCE,
  };
  const linear = (name: string): [string, Linear] => [
    name,
    { name, module: modules[name], head: name === 'lm_head', transposed: modules[name]?.transposed ?? false },
  ];
  const names = [...new Set([...Object.keys(modules), ...plain, 'lm_head'])];
  const model: ModelLinears = { linears: new Map(names.map(linear)), others: ['model.embed_tokens'] };
  const recorder = new Recorder();
  checkConfig(recorder, manifest, { quantization_config: config }, mirror, model);
  return recorder.failures.map(({ message }) => message);
}

const AWQ = {
  ...{ quant_method: 'awq', bits: 4, group_size: 64, zero_point: true, version: 'gemm' },
  modules_to_not_convert: ['lm_head', 'mlp.gate'],
};
const awq = (
  over: Json,
  modules = { 'a.q_proj': module({}) } as Record<string, PackedModule>,
  plain = ['a.mlp.gate'],
) => {
  const config = { ...AWQ, ...over };
  return messages('awq', modules, plain, config, config);
};

test('AWQ: every plain linear is part of a listed name, and every listed name of a plain linear', () => {
  assert.deepEqual(awq({}), []);
  assert.match(awq({ modules_to_not_convert: ['lm_head'] }).join(), /claims that the plain linear 'a\.mlp\.gate'/);
  assert.match(awq({ modules_to_not_convert: ['mlp.gate'] }).join(), /claims that the plain linear 'lm_head'/);
  assert.match(awq({ modules_to_not_convert: null }).join(), /'a\.mlp\.gate'.*'lm_head'/);
  assert.match(awq({ modules_to_not_convert: ['lm_head', 'mlp.gate', 'gone'] }).join(), /names 'gone'/);
  assert.match(awq({ modules_to_not_convert: ['lm_head', 'mlp.gate', 'a.'] }).join(), /leaves out module 'a\.q_proj'/);
  assert.match(awq({ modules_to_not_convert: [] }).join(), /not a list of names/);
  assert.match(awq({ lm_head: true }).join(), /lm_head is a key that the quantized checkpoint does not explain/);
  assert.match(awq({ zero_point: false }).join(), /zero_point is wrong/);
  assert.match(awq({ exllama_config: {} }).join(), /exllama_config is a key/);
  const head = { 'a.q_proj': module({}), lm_head: module({}) };
  assert.deepEqual(awq({ modules_to_not_convert: ['mlp.gate'], lm_head: true }, head), []);
  assert.match(awq({ modules_to_not_convert: ['mlp.gate'] }, head).join(), /lacks lm_head/);
  assert.match(awq({ modules_to_not_convert: ['lm_head', 'mlp.gate'] }, head).join(), /leaves out module 'lm_head'/);
});

const W8A8 = module({
  ...{ type: 'i8', layout: 'int-quantized', granularity: { kind: 'channel' } },
  scales: { dtype: 'f16', block: [1, 128], global: false },
});
const TOKENS = {
  ...{ num_bits: 8, type: 'int', symmetric: true, strategy: 'token', group_size: null, block_structure: null },
  ...{ dynamic: true, actorder: null, observer: null, observer_kwargs: {} },
};
const w8a8 = (over: Json, activations?: Json | null) =>
  messages('compressed-tensors-w8a8', { q: W8A8 }, [], config(over, activations));
const config = (over: Json, activations: Json | null = TOKENS): Json => ({
  ...{ quant_method: 'compressed-tensors', format: 'int-quantized', quantization_status: 'compressed' },
  ...{ global_compression_ratio: null, ignore: ['lm_head'], kv_cache_scheme: null },
  config_groups: {
    group_0: {
      targets: ['Linear'],
      weights: {
        ...{ num_bits: 8, type: 'int', symmetric: true, strategy: 'channel', group_size: null },
        ...{ block_structure: null, dynamic: false, actorder: null, observer: 'minmax', observer_kwargs: {} },
      },
      ...{ input_activations: activations, output_activations: null, format: 'int-quantized' },
      ...over,
    },
  },
});

test('W8A8: what is said of activations is said whole', () => {
  assert.deepEqual(w8a8({}), []);
  assert.match(w8a8({ format: undefined }).join(), /storage form|format/);
  assert.match(w8a8({}, { ...TOKENS, symmetric: false }).join(), /input_activations is wrong/);
  assert.match(w8a8({}, { ...TOKENS, scale_dtype: 'float32' }).join(), /input_activations is wrong/);
  assert.match(w8a8({}, null).join(), /treatment of activations/);
  assert.match(w8a8({ targets: ['q'] }, TOKENS).join(), /^$/);
  assert.match(w8a8({ targets: ['re:nothing'] }, TOKENS).join(), /without a packed module.*leaves out module 'q'/);
  assert.match(
    w8a8({ targets: ['q', 're:.*embed_tokens'] }).join(),
    /names 're:.*embed_tokens'.*claims that 'model\.embed_tokens'/,
  );
});

test('compressed-tensors: a packed head is claimed where it is no Linear, a packed Conv1D where it is none', () => {
  const head = (targets: string[]) =>
    messages('compressed-tensors-w8a8', { q: W8A8, lm_head: W8A8 }, [], { ...config({ targets }), ignore: [] }).join();
  assert.match(head(['Linear']), /leaves out module 'lm_head' in loaders whose class for it is ParallelLMHead/);
  for (const targets of [
    ['Linear', 'lm_head'],
    ['Linear', 'ParallelLMHead'],
    ['Linear', 're:.*lm_head'],
  ])
    assert.equal(head(targets), '');
  const turned = (targets: string[]) =>
    messages('compressed-tensors-w8a8', { q: { ...W8A8, transposed: true } }, [], config({ targets })).join();
  assert.match(turned(['Linear']), /leaves out module 'q' in loaders whose class for it is Conv1D/);
  assert.equal(turned(['Linear', 'Conv1D']), '');
});

test('lpq’s own artifacts: the ranks that the modules are split over, and nothing more', () => {
  const own = (over: Json, ranks?: PackedModule['ranks']) =>
    messages('tilus', { q: module({ layout: 'tilus', ...(ranks && { ranks }) }) }, ['plain'], {
      ...{ quant_method: 'lpq', format: 'lpq-artifact', version: 1, target: 'tilus', manifest: 'lpq.json' },
      ...over,
    });
  assert.deepEqual(own({}), []);
  assert.deepEqual(own({ tensor_parallel: 2 }, { count: 2, split: 'n' }), []);
  assert.match(own({ tensor_parallel: 4 }, { count: 2, split: 'n' }).join(), /tensor_parallel is wrong/);
  assert.match(own({}, { count: 2, split: 'n' }).join(), /lacks tensor_parallel/);
  assert.match(own({ target: 'marlin' }).join(), /target is wrong/);
  assert.match(own({ bits: 4 }).join(), /bits is a key/);
});

test('thousands of patterns that name one module each are looked up; the first that matches counts', () => {
  const names = Array.from({ length: 20_000 }, (_, i) => `model.layers.0.experts.${i}.up_proj`);
  const patterns = new Patterns('dynamic', [
    '.*\\.7\\.up_proj$',
    ...names.map((name) => `^${name.replaceAll('.', '\\.')}$`),
  ]);
  assert.deepEqual(patterns.all(names[19_999] as string), [20_000]);
  assert.deepEqual(patterns.all(names[7] as string), [0, 8]);
  assert.deepEqual(patterns.all('model.layers.0.experts.1.up_proj_more'), []);
});
