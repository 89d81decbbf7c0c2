import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { TestContext } from 'node:test';
import { median } from '../../bench/kernels/time.js';
import { besideOf, putBeside } from '../../native/beside.js';
import { createRuntime, type NativeRuntime } from '../../native/binding.js';
import { GPTQ_DEFAULTS } from '../../src/gptq/options.js';
import { gptqQuantizer } from '../../src/gptq/quantizer.js';
import { type QuantizeSummary, quantizeCheckpoint } from '../../src/quantize/run.js';
import { schemeFromOptions } from '../../src/quantize/scheme.js';
import { ARCHITECTURES, GOLDENS } from '../src/model/fixtures.js';
import { gpuTest } from './gpu.js';

const LENGTH = 40;
const SEQUENCES = Array.from({ length: 32 }, (_, s) =>
  Int32Array.from({ length: LENGTH }, (_, i) => Math.floor(Math.abs(Math.sin((s + 1) * 97 + i * i)) * 64)),
);
const CALIBRATION = {
  name: 'made',
  sha256: '0'.repeat(64),
  seed: 0,
  length: LENGTH,
  kind: 'windows',
  sequences: SEQUENCES,
  tokens: SEQUENCES.length * LENGTH,
  available: SEQUENCES.length,
} as const;

function scratch(t: TestContext): string {
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-gpu-'));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

async function quantize(
  t: TestContext,
  rt: NativeRuntime,
  name: string,
  output = path.join(scratch(t), 'out'),
): Promise<QuantizeSummary> {
  return quantizeCheckpoint([rt], {
    source: path.join(ARCHITECTURES, name),
    output,
    scheme: schemeFromOptions({ bits: 4, groupSize: 32 }),
    rules: [],
    quantizer: gptqQuantizer(GPTQ_DEFAULTS),
    calibration: CALIBRATION,
    lmHead: false,
    options: {},
    version: 'test',
  });
}

gpuTest('experts solved on several streams have the bytes of one', async (t) => {
  const run = async (alone: boolean) => {
    const rt = createRuntime({ device: 'cuda:0' });
    if (alone) putBeside(rt, []);
    const output = path.join(scratch(t), 'out');
    await quantize(t, rt, 'qwen3_moe', output);
    assert.equal(besideOf(rt).length > 0, !alone);
    return readFileSync(path.join(output, 'lpq.json'), 'utf8');
  };
  assert.equal(await run(false), await run(true));
});

/**
 * Module errors are those of the CPU: within a tenth for the median module. Products of 16 bits move codes near ties, and what these small
 * models compute with them moves inputs of later blocks; the few tokens of an expert that is chosen otherwise change its module more.
 */
for (const name of GOLDENS)
  gpuTest(`${name}: gptq on the device has the errors of the CPU`, async (t) => {
    const [device, cpu] = [
      await quantize(t, createRuntime({ device: 'cuda:0' }), name),
      await quantize(t, createRuntime(2), name),
    ];
    const errors = new Map(cpu.modules.map((module) => [module.name, module.relativeError as number]));
    assert.equal(device.modules.length, cpu.modules.length);
    const ratios = device.modules.map((module) => (module.relativeError as number) / errors.get(module.name)!);
    assert.ok(ratios.every(Number.isFinite), `${ratios}`);
    const typical = median(ratios);
    t.diagnostic(
      `median ratio ${typical.toFixed(3)}, ${Math.min(...ratios).toFixed(3)} to ${Math.max(...ratios).toFixed(3)}`,
    );
    assert.ok(Math.abs(typical - 1) < 0.1, `the median module has ${typical} of the CPU's error`);
  });
