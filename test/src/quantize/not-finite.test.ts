import assert from 'node:assert/strict';
import { cpSync, existsSync, mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { Checkpoint } from '../../../formats/safetensors/checkpoint.js';
import { writeSafetensors } from '../../../formats/safetensors/write.js';
import { createRuntime } from '../../../native/binding.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { gptq, Q, replace } from '../../formats/foreign/malformed.js';
import { gptqSettings, writeModel } from '../../formats/foreign/mini.js';
import { CALIB, lpq, model, scratch } from '../cli/lpq.js';
import { build } from '../verify/build.js';
import { Tampered } from '../verify/tamper.js';

const NAN = 0x7fc0;
const INFINITE = 0xff80;

/** A copy of the tiny model with one bf16 value of a tensor replaced. */
async function broken(dir: string, name: string, bits: number, at = 5): Promise<string> {
  const to = path.join(dir, 'model');
  mkdirSync(to);
  for (const file of ['config.json', 'tokenizer.json', 'tokenizer_config.json'])
    if (existsSync(path.join(model, file))) cpSync(path.join(model, file), path.join(to, file));
  const source = Checkpoint.open(model);
  const tensors = [...source.names()].map((each) => ({
    ...source.spec(each),
    data: source.tensor(each).bytes().slice(),
  }));
  source.close();
  const found = tensors.find((tensor) => tensor.name === name);
  assert.ok(found, name);
  new Uint16Array(found.data.buffer)[at] = bits;
  await writeSafetensors(path.join(to, 'model.safetensors'), tensors);
  return to;
}

for (const [what, name, bits] of [
  ['NaN in a norm', 'model.layers.2.input_layernorm.weight', NAN],
  ['NaN in the last norm', 'model.norm.weight', NAN],
  ['infinity in the embedding', 'model.embed_tokens.weight', INFINITE],
  ['infinity in a weight', 'model.layers.1.mlp.up_proj.weight', INFINITE],
  ['NaN in a weight that a rule leaves as it is', 'model.layers.3.mlp.up_proj.weight', NAN],
] as const)
  for (const method of ['rtn', 'gptq'])
    test(`what is not finite is never carried: ${what}, --method ${method}`, async (t) => {
      const dir = scratch(t);
      const source = await broken(dir, name, bits);
      const recipe = path.join(dir, 'recipe.json');
      writeFileSync(recipe, JSON.stringify({ rules: [{ match: 'layers\\.3\\.', skip: true }] }));
      const calibration = method === 'rtn' ? [] : ['--samples', '2', '--seq-len', '32', ...CALIB];
      const out = path.join(dir, 'out');
      const args = [
        '--bits',
        '4',
        '--method',
        method,
        '--recipe',
        recipe,
        ...calibration,
        '--device',
        'cpu',
        '--quiet',
      ];
      const ran = await lpq(['quantize', source, '-o', out, ...args]);
      assert.equal(ran.code, 4, ran.stderr);
      assert.match(ran.stderr, /^LPQ_MODULE_NUMERICS/);
      // GPTQ may meet it first in what a module reads.
      if (method === 'rtn') assert.ok(ran.stderr.includes(name.replace(/\.weight$/, '')), ran.stderr);
      assert.ok(!existsSync(out));
      const found = await lpq(['inspect', source, '--check']);
      assert.equal(found.code, 4);
      assert.match(found.stdout, new RegExp(`${name} holds NaN or infinity: 1 (NaN|infinite), the first at \\[`));
    });

test('what is not finite is never carried: scales of a foreign checkpoint, into every kind of target', async (t) => {
  const dir = scratch(t);
  const source = path.join(dir, 'foreign');
  mkdirSync(source);
  const tensors = replace(gptq(), `${Q}.scales`, (tensor) => {
    const data = (tensor.data as Uint16Array).slice();
    data[7] = 0x7c00;
    return { ...tensor, data };
  });
  await writeModel(source, { tensors, settings: gptqSettings(4, 32) });
  for (const target of ['gptq', 'compressed-tensors', 'awq', 'tilus']) {
    const out = path.join(dir, target);
    const ran = await lpq(['pack', source, '--target', target, '-o', out, '--quiet']);
    assert.equal(ran.code, 4, ran.stderr);
    assert.match(
      ran.stderr,
      /^LPQ_MODULE_NUMERICS .*'model\.layers\.0\.self_attn\.q_proj\.scales' holds NaN or infinity/,
    );
    assert.ok(!existsSync(out));
  }
});

test('what is not finite is never carried: a plain tensor of a foreign checkpoint, which verify names too', async (t) => {
  const dir = scratch(t);
  const source = path.join(dir, 'foreign');
  mkdirSync(source);
  const name = 'model.norm.weight';
  const tensors = replace(gptq(), name, (tensor) => {
    const data = Buffer.from(new Uint8Array((tensor.data as Uint8Array).buffer.slice(0)));
    // All ones are NaN in every float.
    data.fill(0xff, 0, 4);
    return { ...tensor, data };
  });
  await writeModel(source, { tensors, settings: gptqSettings(4, 32) });
  const out = path.join(dir, 'out');
  const ran = await lpq(['pack', source, '--target', 'gptq', '-o', out, '--quiet']);
  assert.equal(ran.code, 4, ran.stderr);
  assert.match(ran.stderr, /^LPQ_MODULE_NUMERICS .*'model\.norm\.weight' holds NaN/);
  assert.ok(!existsSync(out));
  const verified = await lpq(['verify', source, '--quiet']);
  assert.equal(verified.code, 1, verified.stderr);
  assert.match(
    verified.stdout,
    /finite: tensor 'model\.norm\.weight' holds NaN or infinity: \d NaN, the first at \[0\]/,
  );
});

test('verify finds NaN in a carried tensor whose hashes fit', async (t) => {
  const built = await build('gptq', {
    m: {
      type: 'u4',
      n: 16,
      k: 64,
      granularity: { kind: 'group', size: 32 },
      zeros: { kind: 'const', value: 8 },
      layout: 'gptq',
    },
  });
  t.after(built.remove);
  const tampered = new Tampered(built.artifact, 'model.safetensors');
  const place = tampered.tensors().find(({ name }) => name === 'norm.weight');
  assert.ok(place);
  // The first value is 0x3f80, 1 in bf16; 0x7f80 is infinity.
  await tampered.flipped(place.begin + 14, 'all', async () => {
    const { failures } = await verifyArtifact({ dir: built.artifact, runtime: createRuntime(1), emulate: false });
    const [found] = failures;
    assert.deepEqual([found?.check, found?.got], ['carried', '1 infinite, the first at [0]']);
    assert.match(found?.message ?? '', /'norm\.weight' holds NaN or infinity/);
  });
});
