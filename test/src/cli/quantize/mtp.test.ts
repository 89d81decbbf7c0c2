import assert from 'node:assert/strict';
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { Checkpoint } from '../../../../formats/safetensors/checkpoint.js';
import { writeSafetensors } from '../../../../formats/safetensors/write.js';
import { fromTyped, typed } from '../../../../native/binding.js';
import { ARCHITECTURES, ROOT } from '../../model/fixtures.js';
import { events, lpq, model, scratch } from '../lpq.js';

const glm = path.join(ROOT, 'test', 'fixtures', 'prediction', 'glm4_moe');
const RTN = ['--bits', '4', '--group-size', '32', '--method', 'rtn', '--device', 'cpu', '--json', '--dry-run'];

interface Plan {
  readonly modules: readonly { name: string; action: string }[];
  readonly carried: readonly string[];
}

async function planOf(source: string, out: string, ...more: string[]): Promise<Plan> {
  const ran = await lpq(['quantize', source, '-o', out, ...RTN, ...more]);
  return events(ran).find(({ dryRun }) => dryRun === true) as unknown as Plan;
}

test('a dry run has the linears of multi-token prediction with --mtp, of an index or a config.json alone too, and else carries them', async (t) => {
  const dir = scratch(t);
  const bare = path.join(dir, 'bare');
  mkdirSync(bare);
  copyFileSync(path.join(glm, 'config.json'), path.join(bare, 'config.json'));
  const [asked, plain] = [await planOf(glm, path.join(dir, 'out'), '--mtp'), await planOf(glm, path.join(dir, 'out'))];
  // num_nextn_predict_layers says how many there are.
  const stated = await planOf(bare, path.join(dir, 'out'), '--mtp');
  const weights = [...asked.carried, ...asked.modules.map(({ name }) => `${name}.weight`)];
  writeFileSync(
    path.join(bare, 'model.safetensors.index.json'),
    JSON.stringify({ weight_map: Object.fromEntries(weights.map((name) => [name, 'model.safetensors'])) }),
  );
  const indexed = await planOf(bare, path.join(dir, 'out'), '--mtp');
  const inside = (plan: Plan) => plan.modules.filter(({ name }) => name.startsWith('model.layers.2.'));
  // q, k, v, o; three linears of four experts and of the shared one.
  assert.equal(inside(asked).length, 4 + 3 * 5);
  assert.ok(inside(asked).every(({ action }) => action === 'quantize'));
  assert.deepEqual(inside(indexed), inside(asked));
  assert.deepEqual(inside(stated), inside(asked));
  assert.deepEqual(inside(plain), []);
  assert.ok(asked.carried.includes('model.layers.2.eh_proj.weight'));
  assert.ok(plain.carried.includes('model.layers.2.self_attn.q_proj.weight'));
});

test('--mtp is refused where it has no effect: on a model without such layers, and beside fmpq', async (t) => {
  const out = path.join(scratch(t), 'out');
  const none = await lpq(['quantize', model, '-o', out, '--bits', '4', '--method', 'rtn', '--mtp']);
  assert.equal(none.code, 2);
  assert.match(none.stderr, /LPQ_USAGE +--mtp has no effect on .*, which has no layers of multi-token prediction/);
  const fmpq = await lpq(['quantize', glm, '-o', out, '--bits', '4', '--method', 'fmpq', '--mtp']);
  assert.equal(fmpq.code, 2);
  assert.match(fmpq.stderr, /LPQ_USAGE +--mtp does not go with --method fmpq/);
});

/** Linears, norms and what else published checkpoints have of such layers, of kinds that lpq does not compute. */
const OTHERS: readonly (readonly [fixture: string, names: readonly string[]])[] = [
  ['longcat_flash', ['model.mtp.layers.0.transformer_layer.mlp.up_proj', 'model.mtp.layers.0.enorm.m']],
  ['nemotron_h', ['mtp.layers.0.eh_proj', 'mtp.layers.0.mixer.q_proj', 'mtp.layers.0.norm']],
];

for (const [fixture, names] of OTHERS)
  test(`${fixture}: layers of multi-token prediction under other names are carried bit by bit, and declared`, async (t) => {
    const place = scratch(t);
    const [model, out, packed] = ['model', 'out', 'packed'].map((part) => path.join(place, part)) as [
      string,
      string,
      string,
    ];
    mkdirSync(model);
    const source = path.join(ARCHITECTURES, fixture);
    copyFileSync(path.join(source, 'config.json'), path.join(model, 'config.json'));
    copyFileSync(path.join(source, 'model.safetensors'), path.join(model, 'model-1.safetensors'));
    const tensors = names.map((name, at) => {
      const shape = /norm/.test(name) ? [96] : [32, 96];
      const data = Uint16Array.from({ length: shape.reduce((a, b) => a * b) }, (_, i) => 0x3c00 + ((i * 7 + at) % 500));
      return { name: `${name}.weight`, dtype: 'BF16' as const, shape, data: fromTyped('bf16', shape, data) };
    });
    await writeSafetensors(path.join(model, 'model-2.safetensors'), tensors);
    const all = [...Checkpoint.open(source).names()].map((name) => [name, 'model-1.safetensors']);
    const more = tensors.map(({ name }) => [name, 'model-2.safetensors']);
    writeFileSync(
      path.join(model, 'model.safetensors.index.json'),
      JSON.stringify({ weight_map: Object.fromEntries([...all, ...more]) }),
    );
    const run = async (...args: string[]): Promise<void> => {
      const { code, stderr } = await lpq(args);
      assert.equal(code, 0, stderr);
    };
    await run('quantize', model, '-o', out, ...RTN.filter((flag) => flag !== '--dry-run'));
    await run('pack', out, '--target', 'compressed-tensors', '-o', packed);
    await run('verify', packed, '--against', out);
    const { ignore } = JSON.parse(readFileSync(path.join(packed, 'config.json'), 'utf8')).quantization_config;
    for (const { name, data } of tensors) {
      for (const dir of [out, packed]) assert.deepEqual(typed(Checkpoint.open(dir).tensor(name)), typed(data), name);
      if (data.shape.length > 1) assert.ok(ignore.includes(name.slice(0, -'.weight'.length)), name);
    }
  });
