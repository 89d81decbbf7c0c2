import assert from 'node:assert/strict';
import { cpSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { SafetensorsFile } from '../../../formats/safetensors/read.js';
import { gptqTensors, randomCodes } from '../../formats/foreign/encode.js';
import { gptqSettings, plain, quantized, writeModel } from '../../formats/foreign/mini.js';
import { deepseek, gptOss, int4Settings, kimi, qwenVlFp8 } from '../../formats/foreign/published.js';
import { events, lpq, scratch } from './lpq.js';

/** A copy of a model with some bytes of a tensor replaced. */
function spoiled(from: string, to: string, tensor: string, at: number, bytes: readonly number[]): string {
  cpSync(from, to, { recursive: true });
  const place = path.join(to, 'model.safetensors');
  const file = SafetensorsFile.open(place);
  const { begin } = file.spec(tensor);
  file.close();
  const data = readFileSync(place);
  const start = 8 + Number(data.readBigUInt64LE(0)) + begin + at;
  for (const [i, byte] of bytes.entries()) data[start + i] = byte;
  writeFileSync(place, data);
  return to;
}

interface Report {
  ok: boolean;
  kind: string;
  modules: number;
  checks: { name: string; status: string; failures: number; detail?: string }[];
  failures: { check: string; module?: string; message: string }[];
  unproved: string[];
}

const status = (report: Report) => Object.fromEntries(report.checks.map((check) => [check.name, check.status]));

test('GPT-OSS as it is published: inspect, verify, pack and verify against it', async (t) => {
  const dir = scratch(t);
  const { low } = await gptOss(dir);

  const inspected = await lpq(['inspect', low]);
  assert.equal(inspected.code, 0, inspected.stderr);
  assert.match(inspected.stdout, /published in mxfp4/);
  // 4 bits and a byte for each 32.
  assert.match(inspected.stdout, /quantized +24\.6 K weights in 24 modules: f4e2m1, 4\.250 bits per weight/);
  assert.match(inspected.stdout, /experts\.3\.up_proj +f4e2m1 +32 x 32 +32 +f8_e8m0 +none +4\.250/);
  const [data] = events(await lpq(['inspect', low, '--json'])) as [Record<string, unknown>];
  assert.equal((data.modules as unknown[]).length, 24);
  assert.deepEqual([data.quantizedWeights, data.bitsPerWeight], [24576, 4.25]);

  const verified = await lpq(['verify', low, '--json']);
  assert.equal(verified.code, 0, verified.stderr);
  const [report] = events(verified) as unknown as [Report];
  assert.deepEqual([report.ok, report.kind, report.modules], [true, 'foreign:mxfp4', 24]);
  const passed = ['files', 'settings', 'modules', 'scales', 'siblings', 'model', 'finite', 'decode'];
  assert.deepEqual(status(report), Object.fromEntries(passed.map((name) => [name, 'passed'])));
  assert.match(report.unproved[0]!, /holds no hashes/);

  const output = path.join(dir, 'packed');
  const packed = await lpq(['pack', low, '--target', 'tilus', '-o', output]);
  assert.equal(packed.code, 0, packed.stderr);
  const against = await lpq(['verify', output, '--against', low]);
  assert.equal(against.code, 0, against.stdout + against.stderr);
  // Another code in one expert is another model.
  const name = 'model.layers.1.mlp.experts.gate_up_proj';
  const other = spoiled(low, path.join(dir, 'other'), `${name}_blocks`, 5, [0x77]);
  const refuted = await lpq(['verify', output, '--against', other]);
  assert.equal(refuted.code, 1);
  assert.match(refuted.stderr, /was not packed from .*source\.fingerprint/);

  const nan = spoiled(low, path.join(dir, 'nan'), `${name}_scales`, 3, [255]);
  const wrong = await lpq(['verify', nan, '--json']);
  assert.equal(wrong.code, 1);
  const [told] = events(wrong) as unknown as [Report];
  assert.deepEqual([status(told).scales, status(told).decode], ['failed', 'failed']);
  assert.match(told.failures[0]!.message, /1 of 32 scales are NaN/);
  assert.ok(told.failures.some(({ check, message }) => check === 'decode' && /32 of its 1024 weights/.test(message)));

  const idle = await lpq(['verify', low, '--against', output]);
  assert.equal(idle.code, 2);
  assert.match(idle.stderr, /LPQ_USAGE.*--against has no effect/);
});

test('DeepSeek-V3 as it is published: inspect and verify; codes that are NaN, parts that are lost', async (t) => {
  const dir = scratch(t);
  const { low } = await deepseek(dir, 'powers');
  const inspected = await lpq(['inspect', low]);
  assert.match(inspected.stdout, /published in fp8/);
  assert.match(inspected.stdout, /down_proj +f8e4m3 +128 x 256 +128 x 128 +bf16 +none +8\.002/);
  assert.match(inspected.stdout, /28 of 28 modules: its F32 scales are all exact in BF16/);

  const verified = await lpq(['verify', low]);
  assert.equal(verified.code, 0, verified.stderr);
  assert.match(verified.stdout, /decode +passed .*28 of them read in two ways that agree bit by bit/);
  assert.match(verified.stdout, /not proved: that these codes and scales/);

  const name = 'model.layers.1.mlp.experts.2.up_proj';
  const nan = spoiled(low, path.join(dir, 'nan'), `${name}.weight`, 130, [0x7f]);
  const wrong = await lpq(['verify', nan]);
  assert.equal(wrong.code, 1);
  assert.match(wrong.stderr, /experts\.2\.up_proj': 1 of its 16384 weights are NaN/);

  const file = path.join(dir, 'nan', 'model.safetensors');
  const whole = readFileSync(file);
  // Another file: this process may still have the old one mapped.
  rmSync(file);
  writeFileSync(file, whole.subarray(0, -4));
  const cut = await lpq(['verify', path.join(dir, 'nan'), '--json']);
  assert.equal(cut.code, 1);
  const [report] = events(cut) as unknown as [Report];
  assert.deepEqual([status(report).files, status(report).decode], ['failed', 'skipped']);
});

test('verify of a GPTQ directory checks what can be checked, and siblings that disagree', async (t) => {
  const dir = scratch(t);
  const all = quantized({ bits: 4, group: 32, symmetric: true });
  const tensors = [...plain, ...[...all].flatMap(([name, c]) => gptqTensors(name, c, 'v1'))];
  const model = await writeModel(path.join(dir, 'model'), { tensors, settings: gptqSettings(4, 32) });
  const verified = await lpq(['verify', model]);
  assert.equal(verified.code, 0, verified.stderr);
  assert.match(verified.stdout, /decode +passed +14 +- +73\.7 K weights of 14 modules\n/);
  // One of q, k and v in activation order: loaders that fuse them have one order for all.
  const q = all.get('model.layers.0.self_attn.q_proj')!;
  const ordered = randomCodes({ n: q.n, k: q.k, bits: 4, group: 32, symmetric: true, actOrder: true });
  const mixed = [...all].flatMap(([name, c]) =>
    gptqTensors(name, name === 'model.layers.0.self_attn.q_proj' ? ordered : c, 'v1'),
  );
  const other = await writeModel(path.join(dir, 'other'), {
    tensors: [...plain, ...mixed],
    settings: gptqSettings(4, 32, { desc_act: true }),
  });
  const wrong = await lpq(['verify', other]);
  assert.equal(wrong.code, 1, wrong.stdout);
  assert.match(wrong.stderr, /LPQ_VERIFY.*\{q_proj, k_proj, v_proj\}.*quantized differently/);
});

test('Kimi K2.5 as it is published: inspect, verify, doctor by its own spelling of names, and a warning where its codes are quantized again', async (t) => {
  const dir = scratch(t);
  const { low } = await kimi(dir);
  const inspected = await lpq(['inspect', low]);
  assert.equal(inspected.code, 0, inspected.stderr);
  assert.match(inspected.stdout, /source checkpoint, published in compressed-tensors/);
  assert.match(inspected.stdout, /quantized +9\.22 K weights in 9 modules: u4, 4\.563 bits per weight/);
  const verified = await lpq(['verify', low, '--json']);
  assert.equal(verified.code, 0, verified.stderr);
  const [report] = events(verified) as unknown as [Report];
  assert.match(
    report.checks.find(({ name }) => name === 'decode')!.detail!,
    /9 of them read in two ways that agree bit by bit/,
  );
  const diagnosed = await lpq(['doctor', low]);
  assert.equal(diagnosed.code, 0, diagnosed.stdout + diagnosed.stderr);

  const quantize = (from: string, ...more: string[]) =>
    lpq([
      'quantize',
      from,
      '-o',
      path.join(dir, 'out'),
      '--method',
      'rtn',
      '--bits',
      '4',
      '--group-size',
      '32',
      '--dry-run',
      ...more,
    ]);
  const again = await quantize(low);
  assert.equal(again.code, 0, again.stderr);
  assert.match(again.stderr, /9 modules of .* exist only in 4 bits: quantizing them again loses quality a second time/);
  const recipe = path.join(dir, 'recipe.json');
  writeFileSync(recipe, JSON.stringify({ rules: [{ match: 'experts\\.\\d', skip: true }] }));
  const kept = await quantize(low, '--recipe', recipe);
  assert.equal(kept.code, 0, kept.stderr);
  assert.doesNotMatch(kept.stderr, /second time/);

  const file = path.join(low, 'config.json');
  const config = JSON.parse(readFileSync(file, 'utf8'));
  config.text_config.quantization_config = int4Settings({ actorder: 'group' });
  writeFileSync(file, JSON.stringify(config));
  const refused = await quantize(low);
  assert.equal(refused.code, 4);
  assert.match(refused.stderr, /LPQ_CONFIG.*is not an unquantized checkpoint/);
  assert.match(refused.stderr, /compressed-tensors with group_0: actorder group/);
});

test('FP8 experts that share a tensor: verify says what it does not prove of them, pack refuses them', async (t) => {
  const { low } = await qwenVlFp8(scratch(t));
  const verified = await lpq(['verify', low, '--json']);
  assert.equal(verified.code, 0, verified.stderr);
  const [report] = events(verified) as unknown as [Report];
  assert.equal(report.modules, 8);
  assert.match(report.unproved[1]!, /2 tensors of all experts of a block in FP8 .*only one decoder reads them/);
  const packed = await lpq(['pack', low, '--target', 'tilus', '-o', `${low}-packed`]);
  assert.match(packed.stderr, /LPQ_FOREIGN .*in FP8, which lpq cannot pack directly/);
});
