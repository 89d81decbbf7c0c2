import assert from 'node:assert/strict';
import { rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { directoryKind, openQuantized, openSource } from '../../../formats/canonical/source.js';
import { openForeign } from '../../../formats/foreign/open.js';
import { createRuntime } from '../../../native/binding.js';
import { diagnoseDirectory } from '../../../src/cli/doctor/diagnosis/diagnose.js';
import { LpqError } from '../../../src/core/error.js';
import { designed, scratch } from '../scratch.js';
import { awqTensors, type Encoded, gptqTensors, packedTensors, randomCodes } from './encode.js';
import { CONFIG, gptqSettings, packedSettings, plain, quantized, writeModel } from './mini.js';

const rt = createRuntime(1);
const root = scratch();
let count = 0;
const fresh = (): string => path.join(root, String(count++));

const codes = randomCodes({ n: 32, k: 64, bits: 4, group: 32, seed: 3 });
const AWQ = { quant_method: 'awq', bits: 4, group_size: 32, zero_point: true, version: 'gemm' };
const FORMATS: readonly { tensors: Encoded[]; settings: Record<string, unknown> }[] = [
  { tensors: gptqTensors('m', codes, 'v2'), settings: gptqSettings(4, 32, { sym: false, desc_act: true }) },
  { tensors: awqTensors('m', codes), settings: AWQ },
  {
    tensors: packedTensors('m', codes, { symmetric: false, gIdx: true }),
    settings: packedSettings(4, 32, false, { actorder: 'group' }),
  },
  {
    tensors: [
      { name: 'm.weight', dtype: 'F8_E4M3', shape: [32, 64], data: new Uint8Array(2048) },
      { name: 'm.weight_scale_inv', dtype: 'F32', shape: [1, 1], data: new Float32Array(1) },
    ],
    settings: { quant_method: 'fp8', weight_block_size: [128, 128] },
  },
  {
    tensors: [
      { name: 'm_blocks', dtype: 'U8', shape: [2, 4, 3, 16], data: new Uint8Array(384) },
      { name: 'm_scales', dtype: 'U8', shape: [2, 4, 3], data: new Uint8Array(24) },
    ],
    settings: { quant_method: 'mxfp4' },
  },
];

const BYTES = { I32: 4, F16: 2, BF16: 2, F32: 4, I64: 8, U8: 1, I8: 1, F8_E4M3: 1 } as const;
const dtypes = Object.keys(BYTES) as (keyof typeof BYTES)[];

/** A tensor of another dtype, shape or content. */
const spoiled = fc.record({
  dtype: fc.constantFrom(...dtypes),
  shape: fc.array(fc.integer({ min: 0, max: 70 }), { maxLength: 3 }),
  fill: fc.integer({ min: 0, max: 255 }),
});

test('whatever is spoiled, opening and diagnosing end in designed errors or findings', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.constantFrom(...FORMATS),
      fc.nat(9),
      fc.option(spoiled, { nil: undefined }),
      fc.boolean(),
      fc.array(fc.tuple(fc.nat(20), fc.jsonValue({ maxDepth: 2 })), { maxLength: 2 }),
      async ({ tensors, settings }, which, change, lose, edits) => {
        const place = which % tensors.length;
        const list = tensors.flatMap((tensor, i): Encoded[] => {
          if (i !== place) return [tensor];
          if (lose) return [];
          if (!change) return [tensor];
          const size = change.shape.reduce((a, b) => a * b, 1) * BYTES[change.dtype];
          return [{ ...tensor, ...change, data: new Uint8Array(size).fill(change.fill) }];
        });
        const text = structuredClone(settings);
        for (const [key, value] of edits) {
          const keys = Object.keys(text);
          text[keys[key % keys.length] as string] = value;
        }
        const dir = await writeModel(fresh(), { tensors: [...plain, ...list], settings: text });
        try {
          const source = openSource(dir, rt);
          for (const name of source.names()) if (name.startsWith('m')) (await source.tensor(name)).dispose();
          source.close();
          if (directoryKind(dir) !== 'source') (await openQuantized(dir)).close();
        } catch (error) {
          assert.ok(error instanceof LpqError, String((error as Error).stack));
          assert.notEqual(error.code, 'LPQ_INTERNAL', error.message);
        }
        await diagnoseDirectory(dir);
        rmSync(dir, { recursive: true });
      },
    ),
    { numRuns: 150 },
  );
});

test('settings beside config.json, older names, and a directory of lpq without its manifest', async () => {
  const sym = randomCodes({ n: 32, k: 64, bits: 4, group: 32, symmetric: true });
  const dir = await writeModel(fresh(), { tensors: gptqTensors('m', sym, 'v1') });
  assert.throws(() => openSource(dir), designed('LPQ_FOREIGN', /got m\.qweight/));
  const old = { bits: 4, group_size: 32, damp_percent: 0.01, desc_act: false, sym: true };
  writeFileSync(path.join(dir, 'quantize_config.json'), JSON.stringify(old));
  assert.equal(directoryKind(dir), 'foreign:gptq');
  assert.deepEqual(openForeign(dir).canonical.manifest.provenance.options, { damp: 0.01 });
  writeFileSync(path.join(dir, 'quantize_config.json'), '{');
  assert.throws(() => openSource(dir), designed('LPQ_CONFIG', /quantize_config\.json cannot be read/));

  const awq = await writeModel(fresh(), { tensors: awqTensors('m', codes) });
  writeFileSync(path.join(awq, 'quant_config.json'), JSON.stringify({ w_bit: 4, q_group_size: 32, version: 'GEMM' }));
  assert.equal(directoryKind(awq), 'foreign:awq');
  assert.deepEqual(openForeign(awq).canonical.moduleNames(), ['m']);

  const text = { ...CONFIG, text_config: { quantization_config: { ...packedSettings(4, 32, false) } } };
  const packed = await writeModel(fresh(), { tensors: packedTensors('m', codes, { symmetric: false }), config: text });
  assert.equal(directoryKind(packed), 'foreign:compressed-tensors');
  assert.deepEqual(openForeign(packed).canonical.moduleNames(), ['m']);

  const own = await writeModel(fresh(), { tensors: plain, settings: { quant_method: 'lpq' } });
  assert.throws(() => openSource(own), designed('LPQ_CANONICAL', /its lpq\.json is missing/));
});

test('siblings: other act-orders and global scales are warned of, a plain one beside quantized ones is a problem', async () => {
  const all = quantized({ bits: 4, group: 32, symmetric: true });
  const told = async (tensors: Encoded[], settings: object) => {
    const { findings } = await diagnoseDirectory(
      await writeModel(fresh(), { tensors: [...plain, ...tensors], settings }),
    );
    return findings.list
      .filter(({ check }) => check === 'siblings')
      .map(({ severity, message }) => `${severity} ${message}`);
  };
  const shuffled = [...all].flatMap(([name, c], i) =>
    gptqTensors(name, { ...c, gIdx: c.gIdx.map((_, k) => (k + i) % c.groups) }, 'v1'),
  );
  const orders = await told(shuffled, gptqSettings(4, 32, { desc_act: true }));
  assert.equal(orders.length, 4);
  assert.match(orders[0] as string, /^warning .*have different g_idx/);

  const q = 'model.layers.1.self_attn.q_proj';
  const half = [...all].flatMap(([name, c]): Encoded[] =>
    name === q
      ? [{ name: `${name}.weight`, dtype: 'F16', shape: [64, 64], data: new Uint16Array(4096) }]
      : gptqTensors(name, c, 'v1'),
  );
  const plainOne = await told(half, gptqSettings(4, 32));
  assert.equal(plainOne.length, 1);
  assert.match(plainOne[0] as string, /^problem model\.layers\.1\.self_attn\.\{q_proj, k_proj, v_proj\}/);

  const nvfp4 = [...all].flatMap(([name, { n, k }], i): Encoded[] => [
    { name: `${name}.weight_packed`, dtype: 'U8', shape: [n, k / 2], data: new Uint8Array((n * k) / 2) },
    { name: `${name}.weight_scale`, dtype: 'F8_E4M3', shape: [n, k / 16], data: new Uint8Array((n * k) / 16).fill(56) },
    { name: `${name}.weight_global_scale`, dtype: 'F32', shape: [1], data: Float32Array.of(i < 7 ? 8 : i) },
  ]);
  const weights = { num_bits: 4, type: 'float', strategy: 'tensor_group', group_size: 16 };
  const globals = await told(nvfp4, {
    quant_method: 'compressed-tensors',
    format: 'nvfp4-pack-quantized',
    config_groups: { group_0: { targets: ['Linear'], weights } },
  });
  assert.equal(globals.length, 2);
  assert.match(globals[0] as string, /^warning model\.layers\.1\..*different weight_global_scale/);
});
