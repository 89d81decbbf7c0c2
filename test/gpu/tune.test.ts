import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { createRuntime, type NativeRuntime } from '../../native/binding.js';
import { bundledCalibration } from '../../src/calibrate/bundled.js';
import { loadCalibration } from '../../src/calibrate/text.js';
import { openTokenizer } from '../../src/calibrate/tokenizer.js';
import { GPTQ_DEFAULTS } from '../../src/gptq/options.js';
import { gptqQuantizer } from '../../src/gptq/quantizer.js';
import type { OptionValues } from '../../src/quantize/option.js';
import { type ModuleLine, quantizeCheckpoint } from '../../src/quantize/run.js';
import { schemeFromOptions } from '../../src/quantize/scheme.js';
import { trained } from '../../src/tune/trained.js';
import { gpuTest } from './gpu.js';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const MODEL = path.join(root, 'share', 'tiny-llama');

/** tiny-llama in 3 bits, trained; the losses on what is held out, block by block, and the bytes of the manifest, which has all hashes. */
async function train(t: TestContext, rt: NativeRuntime, settings: OptionValues) {
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-gpu-'));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  const output = path.join(dir, 'out');
  const lines: ModuleLine[] = [];
  const summary = await quantizeCheckpoint(
    [rt],
    {
      source: MODEL,
      output,
      scheme: schemeFromOptions({ bits: 3, groupSize: 64 }),
      rules: [],
      quantizer: trained(gptqQuantizer(GPTQ_DEFAULTS), { seed: 0, ...settings }),
      calibration: await loadCalibration(bundledCalibration(), await openTokenizer(MODEL), {
        samples: 64,
        length: 512,
        seed: 0,
      }),
      lmHead: false,
      options: {},
      version: 'test',
    },
    { onModule: (line) => lines.push(line) },
  );
  const blocks = lines.flatMap(({ measures }) => (measures?.tune ? [measures.tune] : []));
  const losses = blocks.map(({ curve }) => [curve[0]!.loss, Math.min(...curve.map(({ loss }) => loss))] as const);
  return { losses, summary, manifest: readFileSync(path.join(output, 'lpq.json'), 'utf8') };
}

gpuTest('blocks are trained on the device as on the CPU, and the same command gives the same bytes', async (t) => {
  const there = () => train(t, createRuntime({ device: 'cuda:0' }), { tune: 60 });
  const [first, again] = [await there(), await there()];
  assert.equal(again.manifest, first.manifest);
  const cpu = await train(t, createRuntime(), { tune: 60 });
  assert.equal(first.losses.length, cpu.losses.length);
  // What training takes off the error of a block is the CPU's, within a tenth of the error before: seeds differ by as much.
  for (const [i, [before, after]] of first.losses.entries()) {
    const [own, least] = cpu.losses[i]!;
    t.diagnostic(`block ${i}: ${before} to ${after}; on the CPU ${own} to ${least}`);
    assert.ok(
      after <= before && Math.abs(after / before - least / own) < 0.1,
      `${before} to ${after}, ${own} to ${least}`,
    );
  }
});

gpuTest('scales are trained on the model as on the CPU, and the same command gives the same bytes', async (t) => {
  const there = () => train(t, createRuntime({ device: 'cuda:0' }), { tuneScales: 30 });
  const [first, again] = [await there(), await there()];
  assert.equal(again.manifest, first.manifest);
  const cpu = await train(t, createRuntime(), { tuneScales: 30 });
  const [there30, cpu30] = [first, cpu].map(({ summary }) => summary.scaleTraining!.curve.map(({ loss }) => loss)) as [
    number[],
    number[],
  ];
  t.diagnostic(`KL ${there30.join(', ')}; on the CPU ${cpu30.join(', ')}`);
  assert.ok(Math.min(...there30) < there30[0]!);
  // What the steps leave of the KL is the CPU's share, within a twentieth.
  assert.ok(Math.abs(Math.min(...there30) / there30[0]! - Math.min(...cpu30) / cpu30[0]!) < 0.05);
});
