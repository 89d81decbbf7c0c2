import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import type { ArtifactManifest } from '../../../../formats/artifact/schema.js';
import { sealManifest } from '../../../../formats/artifact/seal.js';
import { createRuntime } from '../../../../native/binding.js';
import { isCaught, Tampered } from '../../verify/tamper.js';
import { CALIB, lpq, model, scratch } from '../lpq.js';

// What the scales are is compared with hooks on another implementation in test/consumers.

const FEW = [...CALIB, '--samples', '2', '--seq-len', '32'];
const SCALE = /\.(k|v|input|input_global)_scale$/;

async function run(...args: string[]): Promise<void> {
  const ran = await lpq([...args, '--quiet']);
  assert.equal(ran.code, 0, ran.stderr);
}

async function packed(t: TestContext, target: string, ...args: string[]) {
  const dir = scratch(t);
  const [quantized, out] = [path.join(dir, 'q'), path.join(dir, 'out')];
  await run('quantize', model, '-o', quantized, '--method', 'rtn', '--no-report', ...args, ...FEW);
  await run('pack', quantized, '--target', target, '-o', out);
  await run('verify', out, '--against', quantized);
  return { quantized, out };
}

const manifestOf = (dir: string) => JSON.parse(readFileSync(path.join(dir, 'lpq.json'), 'utf8')) as ArtifactManifest;

/** Every calibrated scale of the artifact with one bit flipped, and its hash made to fit. */
async function refusesFlips(out: string, quantized: string, expected: number): Promise<void> {
  const runtime = createRuntime(1);
  const shard = new Tampered(out, 'model.safetensors');
  const scales = shard.tensors().filter(({ name }) => SCALE.test(name));
  assert.equal(scales.length, expected);
  for (const { name, begin } of [scales[0], scales.at(-1)] as typeof scales)
    await shard.flipped(begin + 3, 'all', async () => {
      assert.ok(await isCaught(out, quantized, runtime), name);
      assert.ok(await isCaught(out, undefined, runtime), `${name}, alone`);
    });
}

test('static FP8 with scales of the cache: a scale of other bytes, and a manifest of another range, are refused', async (t) => {
  const types = ['--dtype', 'f8e4m3', '--input-scales', '--kv-scales'];
  const { quantized, out } = await packed(t, 'compressed-tensors-w8a8', ...types);
  await refusesFlips(out, quantized, 28 + 8);
  const config = path.join(out, 'config.json');
  const said = JSON.parse(readFileSync(config, 'utf8')).quantization_config;
  assert.equal(said.kv_cache_scheme.strategy, 'tensor');
  assert.equal(said.config_groups.group_0.input_activations.dynamic, false);
  const runtime = createRuntime(1);
  const manifest = manifestOf(out);
  const forged = async (change: (manifest: ArtifactManifest) => void) => {
    const copy = structuredClone(manifest);
    change(copy);
    writeFileSync(path.join(out, 'lpq.json'), sealManifest(copy).text);
    return isCaught(out, undefined, runtime);
  };
  assert.equal(await forged(() => {}), false);
  const [name] = Object.keys(manifest.modules) as [string];
  assert.ok(
    await forged(({ modules }) => Object.assign(modules[name]!, { inputMost: 3 })),
    'another range of an input',
  );
  assert.ok(await forged(({ modules }) => Object.assign(modules[name]!, { inputMost: undefined })), 'no range');
  const attention = 'model.layers.1.self_attn';
  assert.ok(
    await forged(({ kvScales }) => Object.assign(kvScales!.most[attention]!, { keys: 3 })),
    'another range of keys',
  );
  assert.ok(await forged(({ kvScales }) => delete kvScales!.most[attention]), 'an attention without a range');
});

test('NVFP4 with activations, and 4 bits with FP8 ones', async (t) => {
  const four = await packed(t, 'compressed-tensors-w4a4', '--dtype', 'nvfp4', '--input-scales');
  await refusesFlips(four.out, four.quantized, 28);
  const eight = await packed(t, 'compressed-tensors-w4a8', '--bits', '4', '--kv-scales');
  await refusesFlips(eight.out, eight.quantized, 8);
  const ran = await lpq(['pack', eight.quantized, '--target', 'gptq', '-o', `${eight.out}-gptq`]);
  assert.match(ran.stderr, /scales of keys and values are left out, because gptq does not store them/);
});

test('calibrated scales are refused where nothing can find them, and targets that need them where there are none', async (t) => {
  const dir = scratch(t);
  const made = ['quantize', model, '-o', path.join(dir, 'never'), '--bits', '4'];
  for (const [args, says] of [
    [['--input-scales', '--method', 'fmpq'], /--input-scales does not go with --method fmpq/],
    [['--input-scales', '--mtp'], /--input-scales does not go with --mtp/],
    [['--kv-scales', '--method', 'rtn', '--shard', '0/2'], /--shard does not go with/],
    [['--kv-scales', '--stats', dir], /--kv-scales needs a calibration text/],
    [['--method', 'rtn', ...CALIB], /--calib has no effect with --method rtn/],
  ] as const) {
    const ran = await lpq([...made, ...args]);
    assert.equal(ran.code, 2, ran.stderr);
    assert.match(ran.stderr, says);
  }
  const ran = await lpq([
    ...made.slice(0, 4),
    '--dtype',
    'nvfp4',
    '--method',
    'rtn',
    '--pack',
    'compressed-tensors-w4a4',
  ]);
  assert.equal(ran.code, 2, ran.stderr);
  assert.match(ran.stderr, /its input has no calibrated scale/);
  assert.match(ran.stderr, /Quantize it with --input-scales/);
});
