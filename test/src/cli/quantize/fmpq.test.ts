import assert from 'node:assert/strict';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { CanonicalCheckpoint } from '../../../../formats/canonical/read.js';
import { ARCHITECTURES, writeWidened } from '../../model/fixtures.js';
import { CALIB, events, lpq, model, root, scratch } from '../lpq.js';

const base = ['quantize', model, '-o', 'never', '--bits', '4'];
const fmpq = [...base, '--method', 'fmpq'];

const REFUSALS: readonly (readonly [string[], number, string, RegExp])[] = [
  [[...base, '--act-int4-share', '0.5'], 2, 'LPQ_USAGE', /--act-int4-share.*gptq/],
  [[...base, '--method', 'rtn', '--act-kv', '4'], 2, 'LPQ_USAGE', /--act-kv.*rtn/],
  [[...base, '--no-act-gather'], 2, 'LPQ_USAGE', /--no-act-gather.*gptq/],
  [[...fmpq, '--act-int4-share', '1.5'], 2, 'LPQ_USAGE', /--act-int4-share.*1\.5/],
  [[...fmpq, '--act-int4-share', '0.5', '--act-threshold', '1'], 2, 'LPQ_USAGE', /exclude each other/],
  [[...fmpq, '--act-threshold', '0'], 2, 'LPQ_USAGE', /--act-threshold.*0/],
  [[...fmpq, '--act-search', 'luck'], 2, 'LPQ_USAGE', /--act-search.*luck/],
  [[...fmpq, '--act-scale', '2'], 2, 'LPQ_USAGE', /--act-scale.*2/],
  [[...fmpq, '--act-kv', '9'], 2, 'LPQ_USAGE', /--act-kv.*9/],
  [[...fmpq, '--stats', 'x'], 2, 'LPQ_USAGE', /--method fmpq.*--stats/],
  [[...fmpq, '--asym'], 2, 'LPQ_USAGE', /q_proj.*symmetric/],
  [[...fmpq, '--group-size', '64'], 2, 'LPQ_USAGE', /128 channels.*q_proj/],
  [[...fmpq, '--device', 'cuda'], 3, 'LPQ_DEVICE', /CPU|cuda/],
  [[...fmpq, '--sparsity', '2:4'], 2, 'LPQ_USAGE', /2:4/],
];

const quick = (output: string, samples: number, length: number) => [
  'quantize',
  model,
  '-o',
  output,
  '--bits',
  '4',
  '--method',
  'fmpq',
  '--samples',
  `${samples}`,
  '--seq-len',
  `${length}`,
  ...CALIB,
];

for (const [args, code, error, names] of REFUSALS)
  test(`refused: ${args.slice(3).join(' ')}`, async () => {
    const ran = await lpq(args);
    assert.equal(ran.code, code, ran.stderr);
    assert.match(ran.stderr, new RegExp(error));
    assert.match(ran.stderr, names);
    assert.equal(existsSync(path.join(root, 'never')), false);
  });

test('a cache of latent vectors has no keys and values to quantize', async (t) => {
  const source = path.join(scratch(t), 'source');
  await writeWidened('deepseek_v3', source);
  const args = ['quantize', source, '-o', 'never', '--bits', '4', '--method', 'fmpq'];
  const ran = await lpq([...args, '--act-kv', '4']);
  assert.equal(ran.code, 2, ran.stderr);
  assert.match(ran.stderr, /--act-kv.*block 0 caches latent vectors/);
});

test('quantize with --method fmpq, look at the checkpoint, evaluate it', async (t) => {
  const dir = scratch(t);
  const output = path.join(dir, 'out');
  const args = quick(output, 4, 64);
  const ran = await lpq([...args, '--act-int4-share', '0.75', '--act-kv', '4', '--json']);
  assert.equal(ran.code, 0, ran.stderr);
  const told = events(ran).find(({ event }) => event === 'activations') as { share: { macs: number; blocks: number } };
  assert.ok(told.share.macs >= 0.75 && told.share.macs < 0.85);
  const checkpoint = CanonicalCheckpoint.open(output);
  const { modules, kv, provenance } = checkpoint.manifest;
  assert.deepEqual(kv, { bits: 4, group: 64, clip: true });
  assert.equal(provenance.method, 'fmpq');
  const blocks = Object.values(modules).flatMap(({ activations }) => activations?.bits ?? []);
  assert.equal(new Set(blocks).size, 2);
  for (const [name, { shape, activations, quality }] of Object.entries(modules)) {
    assert.equal(activations?.bits.length, shape[1] / 128, name);
    assert.equal(quality?.method, 'fmpq');
  }
  const q = modules['model.layers.1.self_attn.q_proj']?.activations;
  assert.deepEqual(q, modules['model.layers.1.self_attn.v_proj']?.activations, 'one input, one form');
  checkpoint.close();

  // Packed it is a model with weights of 4 bits, told so; weights of the source would be in another order.
  const packed = path.join(dir, 'packed');
  const mixed = await lpq(['pack', output, '--target', 'gguf', '--source', model, '-o', packed]);
  assert.equal(mixed.code, 2, mixed.stderr);
  assert.match(mixed.stderr, /--source.*another order/);
  const alone = await lpq(['pack', output, '--target', 'gptq', '-o', packed]);
  assert.equal(alone.code, 0, alone.stderr);
  assert.match(alone.stderr, /28 modules.*W4Ax.*only their weights/);

  const text = path.join(dir, 'text.txt');
  writeFileSync(text, readFileSync(path.join(root, 'share', 'text', 'books-valid.txt'), 'utf8').slice(0, 30_000));
  const measured = async (of: string) => {
    const evaluated = await lpq(['eval', of, '--text', text, '--ctx', '128', '--json']);
    assert.equal(evaluated.code, 0, evaluated.stderr);
    return events(evaluated).find(({ ppl }) => ppl !== undefined)?.nll as number;
  };
  const quantized = await measured(output);
  const excess = quantized - (await measured(model));
  assert.ok(excess > 0 && excess < 0.4, `excess ${excess}`);

  // Packed for its kernel, in two parts, with activations and cache: the same model to the last bit.
  const comet = path.join(dir, 'comet');
  for (const part of ['0/2', '1/2']) {
    const made = await lpq(['pack', output, '--target', 'comet', '-o', comet, '--shard', part]);
    assert.equal(made.code, 0, made.stderr);
    assert.doesNotMatch(made.stderr, /weights alone/);
  }
  assert.equal((await lpq(['merge', comet])).code, 0);
  const verified = await lpq(['verify', comet, '--against', output, '--json']);
  assert.equal(verified.code, 0, verified.stderr + verified.stdout);
  const { checks } = events(verified)[0] as { checks: { name: string; status: string; detail?: string }[] };
  assert.equal(checks.find(({ name }) => name === 'emulator')?.status, 'passed');
  assert.match(checks.find(({ name }) => name === 'kv')?.detail ?? '', /simulated/);
  assert.equal(await measured(comet), quantized);
  const planned = await lpq(['pack', output, '--target', 'comet', '-o', 'never', '--tp', '2', '--dry-run', '--json']);
  assert.equal(planned.code, 0, planned.stderr);
  const rows = events(planned)[0]?.modules as { name: string; action: string; notes: string[] }[];
  assert.ok(rows.every(({ action }) => action === 'ok'));
  assert.match(
    rows.find(({ name }) => name.endsWith('0.mlp.gate_proj'))?.notes.join() ?? '',
    /4 bits.*Split over 2 ranks/,
  );
  const mixture = await lpq([...quick(path.join(dir, 'never'), 4, 64), '--pack', 'comet', '--dry-run']);
  assert.equal(mixture.code, 0, mixture.stderr);
});

test('fmpq of a two-level grid: quantized, packed for its own layout, verified, and the same model to the last bit', async (t) => {
  const dir = scratch(t);
  const [output, comet] = [path.join(dir, 'out'), path.join(dir, 'comet')];
  const ran = await lpq([...quick(output, 4, 64), '--act-int4-share', '0.75', '--group-scales', 'integer']);
  assert.equal(ran.code, 0, ran.stderr);
  const checkpoint = CanonicalCheckpoint.open(output);
  for (const { scales, activations } of Object.values(checkpoint.manifest.modules)) {
    assert.equal(scales.twoLevel, true);
    assert.ok(activations);
  }
  checkpoint.close();
  const made = await lpq(['pack', output, '--target', 'comet', '-o', comet]);
  assert.equal(made.code, 0, made.stderr);
  const { modules } = JSON.parse(readFileSync(path.join(comet, 'lpq.json'), 'utf8')) as {
    modules: Record<string, { layout: string; tensors: Record<string, unknown> }>;
  };
  for (const [name, { layout, tensors }] of Object.entries(modules)) {
    assert.equal(layout, 'comet_two_level', name);
    assert.ok(Object.hasOwn(tensors, `${name}.group_scales`));
  }
  const verified = await lpq(['verify', comet, '--against', output, '--json']);
  assert.equal(verified.code, 0, verified.stderr + verified.stdout);
  const { checks } = events(verified)[0] as { checks: { name: string; status: string }[] };
  assert.equal(checks.find(({ name }) => name === 'emulator')?.status, 'passed');
  const text = path.join(dir, 'text.txt');
  writeFileSync(text, readFileSync(path.join(root, 'share', 'text', 'books-valid.txt'), 'utf8').slice(0, 10_000));
  const measured = async (of: string) => {
    const evaluated = await lpq(['eval', of, '--text', text, '--ctx', '128', '--json']);
    assert.equal(evaluated.code, 0, evaluated.stderr);
    return events(evaluated).find(({ ppl }) => ppl !== undefined)?.nll as number;
  };
  assert.equal(await measured(comet), await measured(output));
});

test('a manifest whose activations do not fit its module is refused by its place', async (t) => {
  const dir = scratch(t);
  const output = path.join(dir, 'out');
  const args = quick(output, 2, 32);
  assert.equal((await lpq([...args, '--act-search', 'absmax'])).code, 0);
  const file = path.join(output, 'lpq.json');
  const manifest = JSON.parse(readFileSync(file, 'utf8'));
  manifest.modules['model.layers.0.mlp.up_proj'].activations.bits = [4];
  writeFileSync(file, JSON.stringify(manifest));
  const ran = await lpq(['eval', output, '--text', 'x']);
  assert.equal(ran.code, 4, ran.stderr);
  assert.match(ran.stderr, /LPQ_CANONICAL[\s\S]*up_proj\/activations/);
});

test('linears that blocks of 128 do not divide are refused by name, with what helps here', async () => {
  const ran = await lpq([
    'quantize',
    path.join(ARCHITECTURES, 'qwen2_moe'),
    '-o',
    'never',
    '--bits',
    '4',
    '--method',
    'fmpq',
  ]);
  assert.equal(ran.code, 2, ran.stderr);
  assert.match(ran.stderr, /LPQ_GROUP_SIZE.*q_proj/);
  assert.match(ran.stderr, /Skip such modules with a recipe rule/);
  assert.equal(existsSync(path.join(root, 'never')), false);
});
