import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { openQuantized, openSource } from '../../../formats/canonical/source.js';
import { createRuntime, typed } from '../../../native/binding.js';
import { makeBatch } from '../../../src/model/batch.js';
import { loadOuter, runForward } from '../../../src/model/forward.js';
import { openModel } from '../../../src/model/graph.js';
import type { WeightSource } from '../../../src/model/source.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { rtnQuantizer } from '../../../src/quantize/rtn-quantizer.js';
import { quantizeCheckpoint } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { artifactSource } from '../../../src/verify/source.js';
import type { Encoded } from '../../formats/foreign/encode.js';
import { writeModel } from '../../formats/foreign/mini.js';
import { PlainFile, SHARED, skipWithout } from '../model/fixtures.js';
import { values } from '../model/reference-runtime.js';

/** Mixtures that are published in low bits, whole: what they compute, against the same model written out in floats. */

const rt = createRuntime(2);
const root = mkdtempSync(path.join(tmpdir(), 'lpq-low-bit-'));
after(() => rmSync(root, { recursive: true, force: true }));

let state = 7;
function random(limit: number): number {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return Math.floor((state / 2 ** 32) * limit);
}

async function logitsOf(source: WeightSource): Promise<Float32Array> {
  const graph = openModel(source);
  const outer = await loadOuter(rt, source, graph);
  const ids = [17, 30].map((length, s) => Int32Array.from({ length }, (_, i) => (i * (37 + 11 * s) + 5) % 320));
  const [end] = await runForward(rt, source, graph, outer, [makeBatch(rt, ids)]);
  const logits = graph.logits(rt, outer, end!.h);
  await rt.sync();
  assert.ok(typed(logits).every((value) => Number.isFinite(value)));
  return typed(logits).slice();
}

/** Its logits; the source is closed. */
async function computed(source: WeightSource & { close(): void }): Promise<Float32Array> {
  try {
    return await logitsOf(source);
  } finally {
    source.close();
  }
}

async function eightBits(source: string, output: string): Promise<string> {
  await quantizeCheckpoint([rt], {
    source,
    output,
    scheme: schemeFromOptions({ bits: 8, groupSize: 32 }),
    rules: [{ match: /experts\.1\./, scheme: 'skip' }],
    quantizer: rtnQuantizer(),
    calibration: undefined,
    lmHead: false,
    options: {},
    version: 'test',
  });
  return output;
}

interface Published {
  readonly plain: Encoded[];
  readonly low: Encoded[];
}

/** The checkpoint twice: tensors that `encode` takes in floats and in low bits, the rest as they are. */
async function twice(
  arch: string,
  settings: object,
  encode: (name: string, shape: readonly number[]) => Published | undefined,
): Promise<{ plain: string; low: string }> {
  const dir = path.join(SHARED, 'archs', arch);
  const file = new PlainFile(path.join(dir, 'model.safetensors'));
  const both: { plain: Encoded[]; low: Encoded[] } = { plain: [], low: [] };
  for (const name of Object.keys(file.header)) {
    const tensor = file.tensor(name);
    const same: Encoded = { name, dtype: 'F32', shape: tensor.shape, data: Float32Array.from(values(tensor)) };
    const made = encode(name, tensor.shape) ?? { plain: [same], low: [same] };
    both.plain.push(...made.plain);
    both.low.push(...made.low);
  }
  const config = JSON.parse(readFileSync(path.join(dir, 'config.json'), 'utf8')) as object;
  return {
    plain: await writeModel(path.join(root, `${arch}-plain`), { tensors: both.plain, config }),
    low: await writeModel(path.join(root, `${arch}-low`), { tensors: both.low, config, settings }),
  };
}

const E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0, -0.5, -1, -1.5, -2, -3, -4, -6];

test('GPT-OSS with experts in MXFP4 computes, quantizes and packs as the model of the same floats', {
  skip: skipWithout('archs', 'gpt_oss'),
}, async () => {
  const dirs = await twice('gpt_oss', { quant_method: 'mxfp4' }, (name, shape) => {
    if (!/experts\.(gate_up|down)_proj$/.test(name)) return undefined;
    const [experts, k, n] = shape as [number, number, number];
    const codes = Uint8Array.from({ length: experts * n * k }, () => random(16));
    const exponents = Uint8Array.from({ length: (experts * n * k) / 32 }, () => 119 + random(4));
    const data = new Float32Array(experts * k * n);
    for (let e = 0; e < experts; e++)
      for (let row = 0; row < n; row++)
        for (let i = 0; i < k; i++) {
          const at = (e * n + row) * k + i;
          data[(e * k + i) * n + row] = E2M1[codes[at]!]! * 2 ** (exponents[at >> 5]! - 127);
        }
    const blocks = Uint8Array.from({ length: codes.length / 2 }, (_, i) => codes[2 * i]! | (codes[2 * i + 1]! << 4));
    return {
      plain: [{ name, dtype: 'F32', shape, data }],
      low: [
        { name: `${name}_blocks`, dtype: 'U8', shape: [experts, n, k / 32, 16], data: blocks },
        { name: `${name}_scales`, dtype: 'U8', shape: [experts, n, k / 32], data: exponents },
      ],
    };
  });
  const want = await computed(openSource(dirs.plain, rt));
  // The same numbers in other dtypes: the CPU's linears widen weights before anything else.
  assert.deepEqual(await computed(openSource(dirs.low, rt)), want);

  const canonical = [
    await eightBits(dirs.plain, path.join(root, 'plain-8')),
    await eightBits(dirs.low, path.join(root, 'low-8')),
  ] as const;
  const [plain, low] = [await computed(openSource(canonical[0], rt)), await computed(openSource(canonical[1], rt))];
  assert.deepEqual(low, plain);
  assert.notDeepEqual(low, want);

  // Packed as it is published: experts are modules, their biases still lie in the tensors of all experts.
  const input = await openQuantized(dirs.low);
  const output = path.join(root, 'packed');
  await packCheckpoint({ input, target: 'tilus', output, runtime: rt });
  input.close();
  assert.deepEqual(await computed(artifactSource(output, rt)), want);
});

/** E4M3 by its definition: sign, exponent bias 7, three bits of fraction. */
function e4m3(code: number): number {
  const [e, m] = [(code >> 3) & 15, code & 7];
  return (code & 128 ? -1 : 1) * (e === 0 ? (m / 8) * 2 ** -6 : (1 + m / 8) * 2 ** (e - 7));
}

test('DeepSeek-V3 in FP8 blocks computes and quantizes as the model of the same floats', {
  skip: skipWithout('archs', 'deepseek_v3'),
}, async () => {
  const settings = { quant_method: 'fp8', fmt: 'e4m3', activation_scheme: 'dynamic', weight_block_size: [128, 128] };
  const dirs = await twice('deepseek_v3', settings, (name, shape) => {
    if (!/proj(_with_mqa)?\.weight$/.test(name)) return undefined;
    const [n, k] = shape as [number, number];
    const [rows, columns] = [Math.ceil(n / 128), Math.ceil(k / 128)];
    const codes = Uint8Array.from({ length: n * k }, () => random(2) * 128 + random(0x50));
    const scales = Float32Array.from({ length: rows * columns }, () => 0.01 + random(100) / 1000);
    const data = Float32Array.from({ length: n * k }, (_, i) => {
      const [row, column] = [Math.floor(i / k), i % k];
      return e4m3(codes[i]!) * scales[(row >> 7) * columns + (column >> 7)]!;
    });
    return {
      plain: [{ name, dtype: 'F32', shape, data }],
      low: [
        { name, dtype: 'F8_E4M3', shape, data: codes },
        { name: `${name}_scale_inv`, dtype: 'F32', shape: [rows, columns], data: scales },
      ],
    };
  });
  const want = await computed(openSource(dirs.plain, rt));
  assert.deepEqual(await computed(openSource(dirs.low, rt)), want);
  const [plain, low] = [
    await eightBits(dirs.plain, path.join(root, 'v3-plain-8')),
    await eightBits(dirs.low, path.join(root, 'v3-low-8')),
  ];
  assert.deepEqual(await computed(openSource(low, rt)), await computed(openSource(plain, rt)));
});
