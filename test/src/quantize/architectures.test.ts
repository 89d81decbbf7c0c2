import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { openSource } from '../../../formats/canonical/source.js';
import { createRuntime, typed } from '../../../native/binding.js';
import { artifactSource } from '../../../src/artifact/open.js';
import type { Calibration } from '../../../src/calibrate/text.js';
import { GPTQ_DEFAULTS } from '../../../src/gptq/options.js';
import { gptqQuantizer } from '../../../src/gptq/quantizer.js';
import { makeBatch } from '../../../src/model/batch.js';
import { loadOuter, runForward } from '../../../src/model/forward.js';
import { openModel } from '../../../src/model/graph.js';
import type { WeightSource } from '../../../src/model/source.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { quantizeCheckpoint } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { rtnQuantizer } from '../../../src/rtn/quantizer.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { sampled } from '../../sample.js';
import { ARCHITECTURES, plainSource } from '../model/fixtures.js';
import { DENSE } from './linears.js';

const rt = createRuntime(2);

const SEQUENCES = [17, 40, 3].map((length, s) =>
  Int32Array.from({ length }, (_, i) => (i * (37 + 11 * s) + 5 * s) % 64),
);
const CALIBRATION: Calibration = {
  name: 'made',
  sha256: '0'.repeat(64),
  seed: 0,
  length: 40,
  kind: 'windows',
  sequences: Array.from({ length: 8 }, (_, s) => Int32Array.from({ length: 40 }, (_, i) => (i * i * 7 + s * 41) % 64)),
  tokens: 320,
  available: 8,
};

async function logitsOf(source: WeightSource): Promise<Float32Array> {
  const graph = openModel(source);
  const outer = await loadOuter(rt, source, graph);
  const [state] = await runForward(rt, source, graph, outer, [makeBatch(rt, SEQUENCES)]);
  const logits = graph.logits(rt, outer, state!.h);
  await rt.sync();
  return typed(logits).slice();
}

const rms = (x: Float32Array) => Math.sqrt(x.reduce((sum, value) => sum + value * value, 0) / x.length);

function scratch(t: TestContext): string {
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-arch-'));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

async function quantize(arch: string, output: string, method: 'rtn' | 'gptq', bits: number): Promise<void> {
  await quantizeCheckpoint([rt], {
    source: path.join(ARCHITECTURES, arch),
    output,
    scheme: schemeFromOptions({ bits, groupSize: 32 }),
    rules: [],
    quantizer: method === 'rtn' ? rtnQuantizer() : gptqQuantizer(GPTQ_DEFAULTS),
    calibration: method === 'rtn' ? undefined : CALIBRATION,
    lmHead: false,
    options: {},
    version: 'test',
  });
}

for (const [arch, linears] of sampled('architectures', Object.entries(DENSE), 4))
  test(`${arch}: 8 bits of rtn and gptq give the logits of the source`, async (t) => {
    const dir = scratch(t);
    const want = await logitsOf(plainSource(path.join(ARCHITECTURES, arch)));
    for (const method of ['rtn', 'gptq'] as const) {
      const output = path.join(dir, method);
      await quantize(arch, output, method, 8);
      const source = openSource(output, rt);
      const checkpoint = CanonicalCheckpoint.open(output);
      assert.equal(checkpoint.moduleNames().length, linears);
      const got = await logitsOf(source);
      // Scales of 32 weights at 2.2 of their deviation: rounding is uniform in a step of 2.2 / 127 deviations, 0.5 % of a
      // weight. Eight linears in a row make some 1.4 %, less what the residual stream keeps; twice that.
      const error = rms(got.map((value, i) => value - want[i]!)) / rms(want);
      t.diagnostic(`${method}: ${(100 * error).toFixed(2)} % of the logits`);
      assert.ok(error > 0 && error < 0.03, `${method}: ${error}`);
      source.close();
      checkpoint.close();
    }
  });

test('weights stored as [K, N] are quantized as the linears they are, and read back through every form', async (t) => {
  const dir = scratch(t);
  const canonical = path.join(dir, 'canonical');
  await quantize('gpt2', canonical, 'rtn', 8);
  const checkpoint = CanonicalCheckpoint.open(canonical);
  t.after(() => checkpoint.close());
  const module = checkpoint.module('transformer.h.0.attn.c_attn');
  assert.deepEqual([module.shape, module.transposed], [[96, 32], true]);

  // Scales of the canonical module against the stored matrix: group g of output n is column n, rows 32 g ... 32 g + 31.
  const stored = await plainSource(path.join(ARCHITECTURES, 'gpt2')).tensor('transformer.h.0.attn.c_attn.weight');
  const bits = typed<Uint16Array>(stored);
  const at = (k: number, n: number) => new Float32Array(Uint32Array.of(bits[k * 96 + n]! * 65536).buffer)[0]!;
  const source = openSource(canonical, rt);
  t.after(() => source.close());
  const weight = typed(await source.tensor('transformer.h.0.attn.c_attn.weight'));
  for (const [n, k] of [
    [0, 0],
    [1, 0],
    [0, 1],
    [95, 31],
    [50, 17],
  ] as const) {
    const group = Array.from({ length: 32 }, (_, i) => Math.abs(at(Math.floor(k / 32) * 32 + i, n)));
    // At most half a step of 2 max / 254, and half as much again for a scale rounded to 16 bits.
    assert.ok(Math.abs(weight[n * 32 + k]! - at(k, n)) <= (0.75 * Math.max(...group)) / 127, `${n}, ${k}`);
  }

  const want = await logitsOf(source);
  for (const target of ['gptq', 'tilus']) {
    const output = path.join(dir, target);
    await packCheckpoint({ input: checkpoint, target, output, runtime: rt });
    const artifact = artifactSource(output, rt);
    assert.deepEqual(await logitsOf(artifact), want);
    artifact.close();
  }

  // Five bits do not fit gptq words: with some modules of five, those become plain weights, stored as the source has them.
  const mixed = path.join(dir, 'mixed');
  await quantizeCheckpoint([rt], {
    source: path.join(ARCHITECTURES, 'gpt2'),
    output: mixed,
    scheme: schemeFromOptions({ bits: 4, groupSize: 32 }),
    rules: [{ match: /h\.1\.(attn\.c_proj|mlp)/, scheme: schemeFromOptions({ bits: 5, groupSize: 32 }) }],
    quantizer: rtnQuantizer(),
    calibration: undefined,
    lmHead: false,
    options: {},
    version: 'test',
  });
  const input = CanonicalCheckpoint.open(mixed);
  const output = path.join(dir, 'mixed-gptq');
  await packCheckpoint({ input, target: 'gptq', output, runtime: rt });
  const artifact = artifactSource(output, rt);
  const plain = openSource(mixed, rt);
  assert.deepEqual(artifact.shape('transformer.h.1.mlp.c_fc.weight'), [32, 128]);
  const [got, canonicalLogits] = [await logitsOf(artifact), await logitsOf(plain)];
  // Plain weights are rounded to bf16, to 2^-9 of each; the rest is exact.
  const error = rms(got.map((value, i) => value - canonicalLogits[i]!)) / rms(canonicalLogits);
  assert.ok(error < 2 ** -8, `${error}`);
  const report = await verifyArtifact({ dir: output, runtime: rt, against: mixed });
  assert.ok(report.ok, JSON.stringify(report.failures ?? report));
  for (const each of [input, artifact, plain]) each.close();
});
