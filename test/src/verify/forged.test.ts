// Someone who changes what engines read and redoes every hash and the seal. Titles name the class: nothing that a loader
// reads goes unexplained.
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import type { KvScheme } from '../../../formats/kv/scheme.js';
import { verificationError } from '../../../src/verify/report.js';
import { type Change, CT, GPTQ, type Json, type Listed, testListed, verifyChanged } from './changed.js';

const ct = (config: (q: Json, group: Json) => void): Change => ({
  target: 'compressed-tensors',
  specs: { m: CT },
  config: (_, q) => config(q, (q.config_groups as { group_0: Json }).group_0),
});
const gptq = (config: (q: Json) => void): Change => ({ config: (_, q) => config(q) });

const KEYS: readonly [string, RegExp, Change][] = [
  ['gptq, a key more', /sparsity_config is a key/, gptq((q) => (q.sparsity_config = {}))],
  ['gptq, another word size', /pack_dtype/, gptq((q) => (q.pack_dtype = 'int64'))],
  ['gptq, another damping', /damp_percent/, gptq((q) => (q.damp_percent = 0.5))],
  ['gptq, another quantizer', /meta/, gptq((q) => (q.meta = { quantizer: ['auto_gptq:0.1'] }))],
  ['gptq, static groups', /static_groups/, gptq((q) => (q.static_groups = true))],
  ['gptq, no order of stages', /true_sequential/, gptq((q) => (q.true_sequential = false))],
  ['gptq, a key less', /lacks desc_act/, gptq((q) => delete q.desc_act)],
  ['gptq, a rule for nothing', /matches no linear/, gptq((q) => (q.dynamic = { '-:^gone$': {} }))],
  ['gptq, a rule with a key more', /adapter is a key/, gptq((q) => (q.dynamic = { '+:^m$': { adapter: 1 } }))],
  ['gptq, a rule that neither adds nor leaves out', /neither adds/, gptq((q) => (q.dynamic = { m$: {} }))],
  ['gptq, empty rules', /holds no rules/, gptq((q) => (q.dynamic = {}))],
  ['compressed-tensors, sparsity', /sparsity_config is a key/, ct((q) => (q.sparsity_config = { format: 'dense' }))],
  ['compressed-tensors, a transform', /transform_config is a key/, ct((q) => (q.transform_config = {}))],
  ['compressed-tensors, a cache', /kv_cache_scheme/, ct((q) => (q.kv_cache_scheme = { num_bits: 8 }))],
  ['compressed-tensors, uncompressed', /quantization_status/, ct((q) => (q.quantization_status = 'frozen'))],
  ['compressed-tensors, another form', /format is wrong/, ct((q) => (q.format = 'marlin-24'))],
  ['compressed-tensors, outputs', /output_activations/, ct((_, g) => (g.output_activations = { num_bits: 8 }))],
  ['compressed-tensors, inputs', /input_activations/, ct((_, g) => (g.input_activations = { num_bits: 8 }))],
  ['compressed-tensors, the form of a group', /storage form/, ct((_, g) => (g.format = 'naive-quantized'))],
  ['compressed-tensors, dynamic weights', /weights\.dynamic/, ct((_, g) => ((g.weights as Json).dynamic = true))],
  ['compressed-tensors, an observer', /weights\.observer/, ct((_, g) => ((g.weights as Json).observer = 'mse'))],
  [
    'compressed-tensors, a strategy',
    /weights\.strategy/,
    ct((_, g) => ((g.weights as Json).strategy = 'tensor_group')),
  ],
  [
    'compressed-tensors, a group more',
    /without a packed module/,
    ct((q, g) => Object.assign(q.config_groups as Json, { group_1: { ...g, targets: ['Embedding'] } })),
  ],
  ['compressed-tensors, a class more', /names 'Embedding'/, ct((_, g) => (g.targets = ['Linear', 'Embedding']))],
  ['compressed-tensors, a plain name more', /names 'gone'/, ct((q) => (q.ignore = ['lm_head', 'gone']))],
];

testListed(
  KEYS.map(([title, message, change]): Listed => [`a key that nothing explains: ${title}`, 'config', message, change]),
);

const ROUTER = { carried: { 'block.router.weight': [4, 8], 'pos_embed.weight': [4, 8] } };
const linear = /claims that the plain linear 'block\.router' is quantized/;
const PLAIN: readonly Listed[] = [
  ['a plain linear that no list leaves out: gptq', 'config', linear, { built: ROUTER }],
  [
    'a plain linear that no list leaves out: compressed-tensors',
    'config',
    linear,
    { target: 'compressed-tensors', specs: { m: CT }, built: ROUTER },
  ],
  [
    'the head that no list leaves out: compressed-tensors',
    'config',
    /claims that the plain linear 'lm_head'/,
    ct((q) => (q.ignore = [])),
  ],
  ['the head claimed: gptq', 'config', /lm_head is wrong/, gptq((q) => (q.lm_head = true))],
  [
    'an embedding claimed by its name: compressed-tensors',
    'config',
    /claims that 'embed_tokens' is quantized/,
    ct((_, g) => (g.targets = ['Linear', 're:.*embed_tokens'])),
  ],
  [
    'a module that no list leaves out: gptq',
    'config',
    /claims that the dense module 'd'/,
    { specs: { m: GPTQ, d: { ...GPTQ, layout: 'dense' } }, config: (_, q) => delete q.dynamic },
  ],
];
testListed(PLAIN);

const LLAMA = {
  architectures: ['LlamaForCausalLM'],
  model_type: 'llama',
  vocab_size: 12,
  hidden_size: 32,
  intermediate_size: 32,
  num_attention_heads: 4,
  num_key_value_heads: 4,
  num_hidden_layers: 1,
  tie_word_embeddings: true,
};
const layer = (name: string) => `model.layers.0.${name}`;
const MODEL = {
  config: LLAMA,
  carried: {
    'model.embed_tokens.weight': [12, 32],
    'model.norm.weight': [32],
    [layer('input_layernorm.weight')]: [32],
    [layer('post_attention_layernorm.weight')]: [32],
    ...Object.fromEntries(['k', 'v', 'o'].map((p) => [layer(`self_attn.${p}_proj.weight`), [32, 32]])),
    ...Object.fromEntries(['gate', 'up', 'down'].map((p) => [layer(`mlp.${p}_proj.weight`), [32, 32]])),
  },
};
const Q = { [layer('self_attn.q_proj')]: { ...GPTQ, n: 32 } };

test('every linear of the graph is left out or packed: a config that says so passes, one that forgets one does not', async () => {
  const leave =
    (...forgotten: string[]) =>
    (_: Json, q: Json) => {
      const names = [
        'self_attn.k_proj',
        'self_attn.v_proj',
        'self_attn.o_proj',
        'mlp.gate_proj',
        'mlp.up_proj',
        'mlp.down_proj',
      ];
      q.dynamic = Object.fromEntries(
        names.filter((n) => !forgotten.includes(n)).map((n) => [`-:^${layer(n).replaceAll('.', '\\.')}$`, {}]),
      );
    };
  const change = { specs: Q, built: MODEL };
  assert.deepEqual((await verifyChanged({ ...change, config: leave() })).failures, []);
  const { failures } = await verifyChanged({ ...change, config: leave('mlp.up_proj') });
  assert.deepEqual(
    failures.map(({ message }) => message),
    [`quantization_config claims that the plain linear '${layer('mlp.up_proj')}' is quantized`],
  );
});

test('the tensors of the graph are in the shards, in the shapes of config.json', async () => {
  const carried = { ...MODEL.carried, 'model.embed_tokens.weight': [32, 12] };
  const { failures } = await verifyChanged({ specs: Q, built: { ...MODEL, carried } });
  assert.ok(failures.some(({ check, message }) => check === 'tensors' && /model\.embed_tokens\.weight/.test(message)));
});

const TARGETS: readonly Listed[] = [
  [
    'a target whose layouts these are not: gptq called sm80',
    'config',
    /layout gptq, which an artifact for sm80/,
    { config: (_, q) => (q.checkpoint_format = 'gptq_v2'), manifest: (m) => (m.target = 'sm80') },
  ],
  [
    'a target whose layouts these are not: gptq called gptq_v2',
    'config',
    /layout gptq, which an artifact/,
    { manifest: (m) => (m.target = 'gptq_v2') },
  ],
  [
    'a target that is none: __proto__',
    'config',
    /'__proto__', which is not a target/,
    { manifest: (m) => (m.target = '__proto__') },
  ],
  [
    'a target that is none: constructor',
    'config',
    /'constructor', which is not a target/,
    { manifest: (m) => (m.target = 'constructor') },
  ],
];
testListed(TARGETS);

const FILES: readonly Listed[] = [
  [
    'weights beside the shards, listed',
    'files',
    /extra\.safetensors is not one of the artifact's weight files/,
    { files: { 'extra.safetensors': 'x' } },
  ],
  [
    'weights in a directory of their own kind, listed',
    'files',
    /pytorch_model\.bin is not one/,
    { files: { 'pytorch_model.bin': 'x' } },
  ],
  [
    'an index over nothing, listed',
    'files',
    /index\.json is not one/,
    { files: { 'model.safetensors.index.json': '{}' } },
  ],
  [
    'settings of another format, listed: quant_config.json',
    'files',
    /quant_config\.json states a quantization/,
    { files: { 'quant_config.json': '{}' } },
  ],
  [
    'settings of another format, listed: hf_quant_config.json',
    'files',
    /states a quantization/,
    { files: { 'hf_quant_config.json': '{}' } },
  ],
  [
    'settings of another format, listed: quantize_config.json',
    'config',
    /quantize_config\.json exists, but an artifact for compressed-tensors has none/,
    { target: 'compressed-tensors', specs: { m: CT }, files: { 'quantize_config.json': '{}' } },
  ],
  [
    'a file of no checkpoint, listed',
    'against',
    /generation_config\.json is not in the quantized/,
    { against: true, files: { 'generation_config.json': '{}' } },
  ],
  [
    'a file of no checkpoint, listed: hidden',
    'against',
    /\.env is not in the quantized/,
    { against: true, files: { '.env': '' } },
  ],
  [
    'a key that readers disagree on',
    'files',
    /config\.json reads differently/,
    { files: { 'config.json': '{"hidden_size": 9, "hidden_size": 8, "architectures": []}' } },
  ],
];
testListed(FILES);

test('what no engine reads may differ, and is told: LICENSE, .gitattributes', async () => {
  const report = await verifyChanged({
    against: true,
    files: { LICENSE: 'ours' },
    directory: ({ artifact, quantized }) => {
      writeFileSync(path.join(artifact, '.gitattributes'), '*.safetensors filter=lfs');
      writeFileSync(path.join(artifact, 'LICENSE.txt'), '');
      writeFileSync(path.join(quantized, 'LICENSE'), 'another');
    },
  });
  assert.deepEqual(report.failures, []);
  for (const name of ['LICENSE', 'LICENSE.txt', '.gitattributes'])
    assert.ok(
      report.notes.some((note) => note.startsWith(name)),
      name,
    );
});

test('the spelling of a number in config.json counts: 30 is no float where 30.0 was', async () => {
  const change = { against: true, built: { config: { architectures: ['X'], cap: 1.5 } } };
  assert.deepEqual((await verifyChanged(change)).failures, []);
  const { failures } = await verifyChanged({
    ...change,
    directory: ({ quantized }) => {
      const file = path.join(quantized, 'config.json');
      writeFileSync(file, readFileSync(file, 'utf8').replace('1.5', '1.50'));
    },
  });
  assert.match(failures.map(({ message }) => message).join(), /in the spelling of a number/);
});

const KV: KvScheme = {
  form: 'bitdecoding',
  keys: { bits: 4, granularity: 'channel', group: 64 },
  values: { bits: 4, group: 64 },
  residual: 64,
};
const scheme = /the KV cache scheme/;
const CACHES: readonly Listed[] = [
  [
    'the cache’s scheme is the quantized checkpoint’s: removed',
    'against',
    scheme,
    { against: true, built: { kv: KV }, manifest: (m) => delete m.kv },
  ],
  [
    'the cache’s scheme is the quantized checkpoint’s: added',
    'against',
    scheme,
    { against: true, manifest: (m) => (m.kv = KV) },
  ],
  [
    'the cache’s scheme is the quantized checkpoint’s: changed',
    'against',
    scheme,
    { against: true, built: { kv: KV }, manifest: (m) => (m.kv = { ...KV, residual: 0 }) },
  ],
  [
    'the cache’s scheme is what the options say, lost without --against',
    'kv',
    /--kv 4/,
    { manifest: (m) => (m.provenance.options.kv = '4') },
  ],
];
testListed(CACHES);

test('--against another checkpoint: one sentence, and what differs', async () => {
  const report = await verifyChanged({
    against: true,
    tensors: (tensors) => {
      (tensors[0]?.data as Int32Array)[0]! ^= 1;
    },
    manifest: (m) => {
      m.provenance = {
        ...m.provenance,
        source: { ...m.provenance.source, fingerprint: 'f'.repeat(64) },
        method: 'gptq',
      };
    },
  });
  assert.equal(report.failures.length, 1);
  assert.match(report.failures[0]?.message ?? '', /not packed from .*: .* source\.fingerprint, method/);
  const error = verificationError(report);
  assert.equal(error?.exitCode, 1);
  assert.match(error?.hint ?? '', /^Give --against .*ffffffffffff, --method gptq/);
  assert.ok(
    report.checks.every(({ name, status }) => (name === 'against' ? status === 'failed' : status === 'skipped')),
  );
});
