import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import { createRuntime, type NativeRuntime } from '../../native/binding.js';
import { bundledCalibration } from '../../src/calibrate/bundled.js';
import { type Calibration, loadCalibration } from '../../src/calibrate/text.js';
import { openTokenizer } from '../../src/calibrate/tokenizer.js';
import { GPTQ_DEFAULTS } from '../../src/gptq/options.js';
import { gptqQuantizer } from '../../src/gptq/quantizer.js';
import { type QuantizeSummary, quantizeCheckpoint } from '../../src/quantize/run.js';
import { schemeFromOptions } from '../../src/quantize/scheme.js';
import { gpus, gpuTest } from './gpu.js';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const MODEL = path.join(root, 'share', 'tiny-llama');

let text: Calibration | undefined;
async function calibration(): Promise<Calibration> {
  text ??= await loadCalibration(bundledCalibration(), await openTokenizer(MODEL), {
    samples: 64,
    length: 512,
    seed: 0,
  });
  return text;
}

interface Outcome {
  readonly summary: QuantizeSummary;
  /** sha256 of every module's tensors. */
  readonly hashes: Record<string, unknown>;
}

/** Quantizes the tiny model, 4 bits unless told otherwise, and reads the result back. */
async function quantize(t: TestContext, rts: readonly NativeRuntime[], bits = 4): Promise<Outcome> {
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-gpu-'));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  const output = path.join(dir, 'out');
  const summary = await quantizeCheckpoint(rts, {
    source: MODEL,
    output,
    scheme: schemeFromOptions({ bits, groupSize: 128 }),
    rules: [],
    quantizer: gptqQuantizer(GPTQ_DEFAULTS),
    calibration: await calibration(),
    lmHead: false,
    options: {},
    version: 'test',
  });
  const checkpoint = CanonicalCheckpoint.open(output);
  assert.deepEqual(await checkpoint.verifyHashes(), []);
  const modules = Object.entries(checkpoint.manifest.modules);
  return { summary, hashes: Object.fromEntries(modules.map(([name, { sha256 }]) => [name, sha256])) };
}

/** Relative errors of both, module by module, within `share` of each other. */
function closeErrors(a: Outcome, b: Outcome, share: number): void {
  const errors = new Map(b.summary.modules.map(({ name, relativeError }) => [name, relativeError as number]));
  for (const { name, relativeError } of a.summary.modules) {
    const other = errors.get(name) as number;
    assert.ok(Math.abs((relativeError as number) / other - 1) < share, `${name}: ${relativeError} and ${other}`);
  }
}

gpuTest('the same device gives the same bytes, however much memory it may use', async (t) => {
  const roomy = createRuntime({ device: 'cuda:0' });
  const first = await quantize(t, [roomy]);
  assert.equal(roomy.memory()?.peakParked, 0);
  const again = await quantize(t, [createRuntime({ device: 'cuda:0' })]);
  assert.deepEqual(again.hashes, first.hashes);
  const tight = createRuntime({ device: 'cuda:0', vramLimit: 900 * 2 ** 20 });
  const parked = await quantize(t, [tight]);
  assert.ok((tight.memory()?.peakParked ?? 0) > 2 ** 24, 'activations were to wait on the host');
  assert.ok((tight.memory()?.peakReserved ?? 0) <= 900 * 2 ** 20);
  assert.deepEqual(parked.hashes, first.hashes);
});

gpuTest('module errors are those of the CPU', async (t) => {
  // Codes near ties differ, and what follows them; the error as a whole hardly does.
  closeErrors(await quantize(t, [createRuntime({ device: 'cuda:0' })]), await quantize(t, [createRuntime()]), 0.02);
});

gpuTest('two runtimes share the work as one would do it', async (t) => {
  const pair = () => [0, gpus.length > 1 ? 1 : 0].map((i) => createRuntime({ device: `cuda:${i}` }));
  const two = await quantize(t, pair());
  assert.deepEqual((await quantize(t, pair())).hashes, two.hashes);
  // Another half of the data meets the original model, which moves targets a little.
  closeErrors(two, await quantize(t, [createRuntime({ device: 'cuda:0' })]), 0.05);
});
