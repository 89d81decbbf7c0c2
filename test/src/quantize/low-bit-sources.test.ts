import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
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
import { deepseek, gptOss } from '../../formats/foreign/published.js';

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
