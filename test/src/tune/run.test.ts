import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { createRuntime } from '../../../native/binding.js';
import type { Calibration } from '../../../src/calibrate/text.js';
import { GPTQ_DEFAULTS } from '../../../src/gptq/options.js';
import { gptqQuantizer } from '../../../src/gptq/quantizer.js';
import { type ModuleLine, quantizeCheckpoint } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { rtnQuantizer } from '../../../src/rtn/quantizer.js';
import { TUNE_DEFAULTS } from '../../../src/tune/options.js';
import { tuned } from '../../../src/tune/quantizer.js';
import { scratch } from '../../formats/scratch.js';
import { ARCHITECTURES } from '../model/fixtures.js';

const sequences = Array.from({ length: 24 }, (_, s) =>
  Int32Array.from({ length: 512 }, (_, i) => (i * i * 7 + s * 41 + i * s) % 64),
);
const calibration: Calibration = {
  ...{ name: 'made', sha256: '0'.repeat(64), seed: 0, length: 512, kind: 'windows', sequences, available: 24 },
  tokens: sequences.reduce((sum, { length }) => sum + length, 0),
};
/** As long as a tiny model needs. */
const short = sequences.map((sequence) => sequence.slice(0, 24));

async function run(name: string, steps: number, threads: number, mtp = false, base = gptqQuantizer(GPTQ_DEFAULTS)) {
  const output = path.join(scratch(), 'out');
  const lines: ModuleLine[] = [];
  const warnings: string[] = [];
  await quantizeCheckpoint(
    [createRuntime(threads)],
    {
      source: path.join(mtp ? path.join(ARCHITECTURES, '..', 'prediction') : ARCHITECTURES, name),
      output,
      scheme: schemeFromOptions({ bits: 3, groupSize: 32 }),
      rules: [],
      quantizer: tuned(base, { ...TUNE_DEFAULTS, steps, seed: 0 }),
      calibration: name === 'llama' ? calibration : { ...calibration, sequences: short },
      lmHead: false,
      mtp,
      options: {},
      version: 'test',
    },
    { onModule: (line) => lines.push(line), onWarning: (line) => warnings.push(line) },
  );
  return { lines, warnings, manifest: readFileSync(path.join(output, 'lpq.json'), 'utf8') };
}

test('the kept step has the least loss of those looked at; the same bytes on one thread and on two', async () => {
  const [one, two] = [await run('llama', 20, 1), await run('llama', 20, 2)];
  assert.equal(one.manifest, two.manifest);
  assert.deepEqual(one.warnings, []);
  for (const { measures } of one.lines) {
    const { curve, kept, steps } = measures!.tune!;
    assert.equal(steps, 20);
    const least = Math.min(...curve.map(({ loss }) => loss));
    assert.equal(curve.find(({ step }) => step === kept)!.loss, least);
    assert.ok(least <= curve[0]!.loss);
  }
});

test('training begins with the nearest codes, too', async () => {
  const { lines, warnings } = await run('llama', 20, 2, false, { ...rtnQuantizer(), statistics: true, original: true });
  assert.deepEqual(warnings, []);
  for (const { method, measures } of lines) {
    assert.equal(method, 'rtn');
    const { curve, kept } = measures!.tune!;
    assert.ok(kept > 0 && curve.find(({ step }) => step === kept)!.loss < curve[0]!.loss);
  }
});

test('blocks that cannot be trained stay as they were: a warning, once, and a note on each module', async () => {
  const { lines, warnings } = await run('gemma3n_text', 5, 2);
  assert.deepEqual(warnings, ['--tune cannot train blocks with alternating updates: they stay as gptq makes them']);
  for (const { note, measures } of lines) {
    assert.equal(note, 'not trained: alternating updates');
    assert.equal(measures?.tune, undefined);
  }
});

test('gated delta rules, experts and layers of multi-token prediction are trained, with the same bytes on one thread and on two', async () => {
  const [one, two] = [await run('qwen3_next', 4, 1, true), await run('qwen3_next', 4, 2, true)];
  assert.equal(one.manifest, two.manifest);
  assert.deepEqual(one.warnings, []);
  assert.ok(one.lines.some(({ name }) => name === 'mtp.layers.0.mlp.experts.2.down_proj'));
  for (const { name, measures } of one.lines) {
    const { curve, kept } = measures!.tune!;
    assert.ok(
      curve.every(({ loss }) => Number.isFinite(loss) && loss > 0),
      name,
    );
    assert.ok(curve.find(({ step }) => step === kept)!.loss <= curve[0]!.loss, name);
  }
});
