import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { openQuantized, openSource } from '../../../formats/canonical/source.js';
import { createRuntime, typed } from '../../../native/binding.js';
import { artifactSource } from '../../../src/artifact/open.js';
import { makeBatch } from '../../../src/model/batch.js';
import { loadOuter, runForward } from '../../../src/model/forward.js';
import { openModel } from '../../../src/model/graph.js';
import type { WeightSource } from '../../../src/model/source.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { quantizeCheckpoint } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { rtnQuantizer } from '../../../src/rtn/quantizer.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { deepseek, gptOss, kimi, type Published, qwenVlFp8, qwenVlMxfp4 } from '../../formats/foreign/published.js';
import { designed } from '../../formats/scratch.js';

/** Mixtures that are published in low bits, whole: what they compute, against the same model written out in floats. */

const rt = createRuntime(2);
const root = mkdtempSync(path.join(tmpdir(), 'lpq-low-bit-'));
after(() => rmSync(root, { recursive: true, force: true }));

async function logitsOf(source: WeightSource): Promise<Float32Array> {
  const graph = openModel(source);
  const outer = await loadOuter(rt, source, graph);
  const ids = [17, 30].map((length, s) => Int32Array.from({ length }, (_, i) => (i * (37 + 11 * s) + 5) % 64));
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

test('GPT-OSS with experts in MXFP4 computes, quantizes and packs as the model of the same floats', async () => {
  const dirs = await gptOss(root);
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

test('DeepSeek-V3 in FP8 blocks computes and quantizes as the model of the same floats', async () => {
  const dirs = await deepseek(root);
  const want = await computed(openSource(dirs.plain, rt));
  assert.deepEqual(await computed(openSource(dirs.low, rt)), want);
  const [plain, low] = [
    await eightBits(dirs.plain, path.join(root, 'v3-plain-8')),
    await eightBits(dirs.low, path.join(root, 'v3-low-8')),
  ];
  assert.deepEqual(await computed(openSource(low, rt)), await computed(openSource(plain, rt)));
});

const NESTED: Readonly<Record<string, (root: string) => Promise<Published>>> = {
  'Kimi K2.5 with experts in INT4': kimi,
  'Qwen3-VL-MoE in FP8 blocks, experts of a block in one tensor': qwenVlFp8,
  'Qwen3-VL-MoE with experts in MXFP4': qwenVlMxfp4,
};

for (const [what, make] of Object.entries(NESTED))
  test(`${what}, under nested names: computes and quantizes as the model of the same floats, towers carried`, async () => {
    const dirs = await make(root);
    const want = await computed(openSource(dirs.plain, rt));
    assert.deepEqual(await computed(openSource(dirs.low, rt)), want);
    const outputs = [
      await eightBits(dirs.plain, `${dirs.plain}-8`),
      await eightBits(dirs.low, `${dirs.low}-8`),
    ] as const;
    const [plain, low] = [await openQuantized(outputs[0]), await openQuantized(outputs[1])];
    assert.deepEqual([...low.weights.names()].sort(), [...plain.weights.names()].sort());
    // The dtype that the source had is another: MXFP4 is read as BF16.
    for (const name of plain.moduleNames()) assert.deepEqual(low.module(name).sha256, plain.module(name).sha256);
    const towers = Object.keys(plain.manifest.carried).filter((name) => /vis|projector/.test(name));
    assert.ok(towers.length > 0);
    for (const name of towers) assert.equal(low.manifest.carried[name], plain.manifest.carried[name]);
    // What was quantized so is not any more, and nothing in config.json says so.
    const config = readFileSync(path.join(outputs[1], 'config.json'), 'utf8');
    assert.equal(config.match(/"quantization_config"/g)?.length, 1);
    assert.equal(JSON.parse(config).quantization_config.quant_method, 'lpq');
    plain.close();
    low.close();
    const again = await computed(openSource(outputs[1], rt));
    assert.deepEqual(again, await computed(openSource(outputs[0], rt)));

    const packed = `${dirs.low}-packed`;
    const input = await openQuantized(outputs[1]);
    await packCheckpoint({ input, target: 'tilus', output: packed, runtime: rt });
    input.close();
    const report = await verifyArtifact({ dir: packed, against: outputs[1], runtime: rt });
    assert.ok(report.ok, JSON.stringify(report.failures));
    assert.deepEqual(await computed(artifactSource(packed, rt)), again);
  });

test('Kimi K2.5 in INT4 is packed as it is published', async () => {
  const dirs = await kimi(path.join(root, 'as-it-is'));
  const output = path.join(root, 'kimi-packed');
  const input = await openQuantized(dirs.low);
  assert.deepEqual(input.moduleNames().sort(), [...dirs.weights.keys()].sort());
  await packCheckpoint({ input, target: 'compressed-tensors', output, runtime: rt });
  const report = await verifyArtifact({ dir: output, opened: input, runtime: rt, emulate: false });
  assert.deepEqual(report.failures, []);
  const packed = artifactSource(output, rt);
  for (const [module, weight] of dirs.weights)
    assert.deepEqual(typed<Float32Array>(await packed.tensor(`${module}.weight`)), weight);
  packed.close();
  const config = JSON.parse(readFileSync(path.join(output, 'config.json'), 'utf8'));
  assert.equal(config.text_config.quantization_config, undefined);
  assert.equal(config.quantization_config.format, 'pack-quantized');
});

test('FP8 experts of a block in one tensor are not packed as they are', async () => {
  const { low } = await qwenVlFp8(path.join(root, 'fused-fp8'));
  await assert.rejects(
    openQuantized(low),
    designed('LPQ_FOREIGN', /experts\.(gate_up|down)_proj' .* in FP8.*Quantize the model first/s),
  );
});
