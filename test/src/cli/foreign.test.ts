import assert from 'node:assert/strict';
import { readdirSync, readFileSync, rmSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { SafetensorsFile } from '../../../formats/safetensors/read.js';
import { writeSafetensors } from '../../../formats/safetensors/write.js';
import { typed } from '../../../native/binding.js';
import { awqTensors, gptqTensors, packedTensors } from '../../formats/foreign/encode.js';
import { dequantized, gptqSettings, packedSettings, plain, quantized, writeModel } from '../../formats/foreign/mini.js';
import { events, lpq, scratch } from './lpq.js';

const sym = quantized({ bits: 4, group: 32, symmetric: true });
const asym = quantized({ bits: 4, group: 32, symmetric: false });
const three = quantized({ bits: 3, group: 32, symmetric: true });

test('logits of foreign directories are those of their weights written out, bit by bit', async (t) => {
  const dir = scratch(t);
  const ids = path.join(dir, 'ids.safetensors');
  const input = Int32Array.from({ length: 24 }, (_, i) => (i * 7 + 3) % 48);
  await writeSafetensors(ids, [{ name: 'input_ids', dtype: 'I32', shape: [2, 12], data: input }]);
  const logits = async (model: string): Promise<Float32Array> => {
    const output = `${model}-logits.safetensors`;
    const ran = await lpq(['logits', model, '--ids', ids, '-o', output, '--threads', '1', '--device', 'cpu']);
    assert.equal(ran.code, 0, ran.stderr);
    return typed<Float32Array>(SafetensorsFile.open(output).tensor('logits')).slice();
  };
  const cases = {
    gptq: {
      codes: sym,
      tensors: [...sym].flatMap(([name, c]) => gptqTensors(name, c, 'v1')),
      settings: gptqSettings(4, 32),
    },
    // The settings state v1, the words are v2: read by the words.
    mislabelled: {
      codes: three,
      tensors: [...three].flatMap(([name, c]) => gptqTensors(name, c, 'v2')),
      settings: gptqSettings(3, 32),
    },
    awq: {
      codes: asym,
      tensors: [...asym].flatMap(([name, c]) => awqTensors(name, c)),
      settings: { quant_method: 'awq', bits: 4, group_size: 32, zero_point: true, version: 'gemm' },
    },
    packed: {
      codes: asym,
      tensors: [...asym].flatMap(([name, c]) => packedTensors(name, c, { symmetric: false })),
      settings: packedSettings(4, 32, false),
    },
  };
  for (const [name, { codes, tensors, settings }] of Object.entries(cases)) {
    const model = await writeModel(path.join(dir, name), { tensors: [...plain, ...tensors], settings });
    const reference = await logits(await dequantized(path.join(dir, `${name}-plain`), codes));
    assert.ok(reference.some((x) => Math.abs(x) > 0.1));
    assert.deepEqual(await logits(model), reference, name);
  }
});

test('a foreign directory is inspected, packed, verified against and evaluated where it lies', async (t) => {
  const dir = scratch(t);
  const tensors = [...plain, ...[...sym].flatMap(([name, c]) => gptqTensors(name, c, 'v2'))];
  const model = await writeModel(path.join(dir, 'model'), { tensors, settings: gptqSettings(4, 32) });
  const before = readdirSync(model);

  const inspected = await lpq(['inspect', model]);
  assert.equal(inspected.code, 0, inspected.stderr);
  assert.match(inspected.stdout, /quantized by another tool \(gptq\)/);
  assert.match(inspected.stdout, /llama, 2 blocks, hidden 64/);
  assert.match(inspected.stdout, /model\.layers\.1\.mlp\.down_proj +u4 +64 x 128 +32 +f16 +const/);
  assert.match(inspected.stdout, /14 of 14 modules: .*states gptq .*stored as in gptq_v2/);
  const [seen] = events(await lpq(['inspect', model, '--json'])) as [{ modules: unknown[]; kind: string }];
  assert.equal(seen.modules.length, 14);

  const plan = await lpq(['pack', model, '--target', 'marlin', '-o', path.join(dir, 'none'), '--dry-run']);
  assert.match(plan.stdout, /q_proj +u4 +64 x 64/);
  const output = path.join(dir, 'gptq');
  const packed = await lpq(['pack', model, '--target', 'gptq', '-o', output]);
  assert.equal(packed.code, 0, packed.stderr);
  // What was mislabelled is what its settings say once it is written anew.
  const words = SafetensorsFile.open(path.join(output, 'model.safetensors')).tensor(
    'model.layers.0.mlp.up_proj.qzeros',
  );
  assert.ok(typed<Int32Array>(words).every((word) => word === 0x77777777));
  assert.equal(JSON.parse(readFileSync(path.join(output, 'quantize_config.json'), 'utf8')).checkpoint_format, 'gptq');

  const verified = await lpq(['verify', output, '--against', model]);
  assert.equal(verified.code, 0, verified.stdout + verified.stderr);
  const other = await writeModel(path.join(dir, 'other'), {
    tensors: [...plain, ...[...asym].flatMap(([name, c]) => gptqTensors(name, c, 'v2'))],
    settings: gptqSettings(4, 32, { sym: false, checkpoint_format: 'gptq_v2' }),
  });
  const refuted = await lpq(['verify', output, '--against', other]);
  assert.equal(refuted.code, 1, refuted.stderr);
  assert.deepEqual(readdirSync(model), before);

  const again = await lpq(['quantize', model, '-o', path.join(dir, 'twice'), '--bits', '4']);
  assert.equal(again.code, 4);
  assert.match(again.stderr, /LPQ_CONFIG.*not an unquantized checkpoint/);
});

test('doctor DIR: exit code, text and JSON', async (t) => {
  const dir = scratch(t);
  const good = [...plain, ...[...sym].flatMap(([name, c]) => gptqTensors(name, c, 'v1'))];
  const model = await writeModel(path.join(dir, 'good'), { tensors: good, settings: gptqSettings(4, 32) });
  const fine = await lpq(['doctor', model]);
  assert.equal(fine.code, 0, fine.stderr);
  assert.match(fine.stdout, /siblings +ok +4 sets/);
  assert.match(fine.stdout, /good \(foreign:gptq\): nothing is wrong/);

  const lost = good.filter(({ name }) => name !== 'model.layers.1.self_attn.k_proj.qzeros');
  const broken = await writeModel(path.join(dir, 'broken'), { tensors: lost, settings: gptqSettings(4, 32) });
  const wrong = await lpq(['doctor', broken]);
  assert.equal(wrong.code, 4);
  assert.match(wrong.stdout, /modules +problem +13 of 14 can be read/);
  assert.match(wrong.stdout, /problem {2}modules: .* lacks the tensor 'model\.layers\.1\.self_attn\.k_proj\.qzeros'/);
  const ran = await lpq(['doctor', broken, '--json']);
  assert.equal(ran.code, 4);
  const list = events(ran);
  assert.equal(list.length, 1);
  const { ok, kind, findings } = list[0] as {
    ok: boolean;
    kind: string;
    findings: { check: string; severity: string }[];
  };
  assert.deepEqual([ok, kind], [false, 'foreign:gptq']);
  assert.deepEqual([...new Set(findings.map(({ check }) => check))].sort(), ['model', 'modules']);

  const bare = path.join(dir, 'good', 'config.json');
  rmSync(bare);
  assert.equal((await lpq(['doctor', model])).code, 4);
  const nowhere = await lpq(['doctor', path.join(dir, 'nowhere')]);
  assert.equal(nowhere.code, 4);
  assert.match(nowhere.stderr, /LPQ_FILE.*does not exist/);
});

test('quantize takes a model that is published in FP8 as it takes its floats', async (t) => {
  const dir = scratch(t);
  const linear = (name: string, n: number, k: number, seed: number) => {
    const codes = Uint8Array.from(
      { length: n * k },
      (_, i) => (((i * 37 + seed) % 113) + 7) | ((i * i + seed) % 3 === 0 ? 128 : 0),
    );
    // Powers of two, so that both models hold the same numbers.
    const scales = Float32Array.of(2 ** -8);
    return { name, n, k, codes, scales };
  };
  const all = [...sym].map(([name, { n, k }], i) => linear(name, n, k, i));
  const value = (code: number): number => {
    const [e, m] = [(code >> 3) & 15, code & 7];
    return (code & 128 ? -1 : 1) * (e === 0 ? (m / 8) * 2 ** -6 : (1 + m / 8) * 2 ** (e - 7));
  };
  const fp8 = await writeModel(path.join(dir, 'fp8'), {
    tensors: [
      ...plain,
      ...all.flatMap(({ name, n, k, codes, scales }) => [
        { name: `${name}.weight`, dtype: 'F8_E4M3', shape: [n, k], data: codes } as const,
        { name: `${name}.weight_scale_inv`, dtype: 'F32', shape: [1, 1], data: scales } as const,
      ]),
    ],
    settings: { quant_method: 'fp8', fmt: 'e4m3', weight_block_size: [128, 128] },
  });
  const floats = await writeModel(path.join(dir, 'floats'), {
    tensors: [
      ...plain,
      ...all.map(
        ({ name, n, k, codes }) =>
          ({
            name: `${name}.weight`,
            dtype: 'F32',
            shape: [n, k],
            data: Float32Array.from(codes, (c) => value(c) / 256),
          }) as const,
      ),
    ],
  });
  const hashes: unknown[] = [];
  for (const source of [fp8, floats]) {
    const output = `${source}-w4`;
    const ran = await lpq(['quantize', source, '-o', output, '--bits', '4', '--group-size', '32', '--method', 'rtn']);
    assert.equal(ran.code, 0, ran.stderr);
    const { modules, carried } = JSON.parse(readFileSync(path.join(output, 'lpq.json'), 'utf8'));
    hashes.push({ modules, carried });
  }
  assert.deepEqual(hashes[0], hashes[1]);
  const inspected = await lpq(['inspect', fp8]);
  assert.match(inspected.stdout, /source checkpoint, published in fp8/);
  assert.match(inspected.stdout, /14 linears/);
});
