import assert from 'node:assert/strict';
import { renameSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { directoryKind, openSource } from '../../../formats/canonical/source.js';
import { openForeign } from '../../../formats/foreign/open.js';
import { createRuntime, typed } from '../../../native/binding.js';
import type { Encoded } from '../foreign/encode.js';
import { writeModel } from '../foreign/mini.js';
import { designed, scratch } from '../scratch.js';

const rt = createRuntime(1);
const root = scratch();
let count = 0;
const fresh = (): string => path.join(root, String(count++));

const [N, K] = [3, 32];
const bytes = (length: number, seed: number, limit = 256): Uint8Array<ArrayBuffer> =>
  Uint8Array.from({ length }, (_, i) => (i * 37 + seed * 101) % limit);

/** E4M3 by its definition: bias 7, no infinity. */
function e4m3(bits: number): number {
  const [sign, exponent, fraction] = [bits >> 7 ? -1 : 1, (bits >> 3) & 15, bits & 7];
  return sign * (exponent === 0 ? fraction * 2 ** -9 : (1 + fraction / 8) * 2 ** (exponent - 7));
}
const E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6];
const e2m1 = (bits: number): number => (bits & 8 ? -1 : 1) * (E2M1[bits & 7] as number);

/** FP8: neither pattern of NaN (127, 255). */
const CODES = bytes(N * K, 1, 127);
function fp8(name: string, scales: readonly number[], shape: readonly number[]): Encoded[] {
  return [
    { name: `${name}.weight`, dtype: 'F8_E4M3', shape: [N, K], data: CODES },
    { name: `${name}.weight_scale`, dtype: 'F32', shape, data: Float32Array.from(scales) },
    { name: `${name}.input_scale`, dtype: 'F32', shape: [], data: Float32Array.of(0.25) },
  ];
}

const FOURS = bytes((N * K) / 2, 2);
const SCALES = bytes(N * 2, 3, 127);
function nvfp4(name: string, factor = 0.125): Encoded[] {
  return [
    { name: `${name}.weight`, dtype: 'U8', shape: [N, K / 2], data: FOURS },
    { name: `${name}.weight_scale`, dtype: 'F8_E4M3', shape: [N, K / 16], data: SCALES },
    { name: `${name}.weight_scale_2`, dtype: 'F32', shape: [], data: Float32Array.of(factor) },
    { name: `${name}.input_scale`, dtype: 'F32', shape: [], data: Float32Array.of(0.5) },
  ];
}

const WEIGHTS: Readonly<Record<string, (i: number) => number>> = {
  // Scales are powers of two, so that every product is exact.
  tensor: (i) => e4m3(CODES[i] as number) * 0.5,
  channel: (i) => e4m3(CODES[i] as number) * 2 ** Math.floor(i / K),
  nvfp4(i) {
    const code = ((FOURS[i >> 1] as number) >> (4 * (i % 2))) & 15;
    return e2m1(code) * e4m3(SCALES[Math.floor(i / 16)] as number) * 0.125;
  },
};

async function expectWeights(dir: string, modules: Readonly<Record<string, string>>): Promise<void> {
  const source = openSource(dir, rt);
  assert.deepEqual(
    [...source.names()].sort(),
    Object.keys(modules)
      .map((name) => `${name}.weight`)
      .sort(),
  );
  for (const [name, kind] of Object.entries(modules)) {
    const want = Float32Array.from({ length: N * K }, (_, i) => WEIGHTS[kind]?.(i) as number);
    assert.deepEqual(typed<Float32Array>(await source.tensor(`${name}.weight`)), want, name);
  }
  source.close();
}

test('FP8 of a tensor and of rows, NVFP4 with and without activations', async () => {
  for (const [quant_algo, tensors, kind] of [
    ['FP8', fp8('m', [0.5], []), 'tensor'],
    ['fp8', fp8('m', [0.5], [1]), 'tensor'],
    ['FP8_PER_CHANNEL_PER_TOKEN', fp8('m', [1, 2, 4], [N, 1]), 'channel'],
    ['NVFP4', nvfp4('m'), 'nvfp4'],
    ['W4A16_NVFP4', nvfp4('m').slice(0, 3), 'nvfp4'],
  ] as const) {
    const settings = { quant_method: 'modelopt', quant_algo, ignore: ['lm_head'], producer: { name: 'modelopt' } };
    await expectWeights(await writeModel(fresh(), { tensors, settings }), { m: kind });
  }
});

test('hf_quant_config.json beside config.json, mixed', async () => {
  const tensors = [...fp8('a', [0.5], []), ...nvfp4('b')];
  const dir = await writeModel(fresh(), { tensors, settings: { quant_method: 'modelopt' } });
  const config = path.join(dir, 'config.json');
  renameSync(config, `${config}.old`);
  writeFileSync(config, '{"model_type":"llama"}');
  const quantization = {
    quant_algo: 'MIXED_PRECISION',
    kv_cache_quant_algo: 'FP8',
    quantized_layers: { a: { quant_algo: 'FP8' }, b: { quant_algo: 'NVFP4', group_size: 16 } },
  };
  const beside = path.join(dir, 'hf_quant_config.json');
  writeFileSync(beside, JSON.stringify({ producer: { name: 'modelopt', version: '0.47' }, quantization }));
  assert.equal(directoryKind(dir), 'foreign:modelopt');
  await expectWeights(dir, { a: 'tensor', b: 'nvfp4' });
  // Tampered: an algorithm that the tensors are not of, and a module that has none.
  const { quantized_layers: layers } = quantization;
  for (const [changed, says] of [
    [{ ...layers, b: { quant_algo: 'FP8' } }, /LPQ_FOREIGN.*'b\.weight'/],
    [{ a: layers.a }, /LPQ_CONFIG.*quantized_layers of 'b'/],
  ] as const) {
    writeFileSync(beside, JSON.stringify({ quantization: { ...quantization, quantized_layers: changed } }));
    assert.throws(
      () => openForeign(dir),
      (error: { code: string; message: string }) => says.test(`${error.code} ${error.message}`),
    );
  }
});

test('refused by name: algorithms that lpq does not read, scales that do not fit', async () => {
  for (const [algo, tensors, code, says] of [
    ['W4A8_AWQ', fp8('m', [0.5], []), 'LPQ_CONFIG', /'quant_algo' cannot be used/],
    ['MXFP8', fp8('m', [0.5], []), 'LPQ_FOREIGN', /weight_scale/],
    ['FP8', fp8('m', [1, 2], [2]), 'LPQ_FOREIGN', /weight_scale/],
    ['NVFP4', fp8('m', [0.5], []), 'LPQ_FOREIGN', /m\.weight/],
    ['NVFP4', nvfp4('m', 0), 'LPQ_FOREIGN', /not a factor of weights/],
    ['NVFP4', nvfp4('m').filter(({ name }) => !name.endsWith('_2')), 'LPQ_FOREIGN', /weight_scale_2/],
  ] as const) {
    const dir = await writeModel(fresh(), { tensors, settings: { quant_method: 'modelopt', quant_algo: algo } });
    assert.throws(() => openForeign(dir), designed(code, says));
  }
});
