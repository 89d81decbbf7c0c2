import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { CanonicalSource, SourceCheckpoint } from '../../../formats/canonical/source.js';
import { createRuntime, typed } from '../../../native/binding.js';
import type { Calibration } from '../../../src/calibrate/text.js';
import { FMPQ_DEFAULTS } from '../../../src/fmpq/options.js';
import { planFmpq } from '../../../src/fmpq/plan.js';
import { fmpqQuantizer } from '../../../src/fmpq/quantizer.js';
import { GPTQ_DEFAULTS } from '../../../src/gptq/options.js';
import { gptqQuantizer } from '../../../src/gptq/quantizer.js';
import { makeBatch } from '../../../src/model/batch.js';
import { loadOuter, runForward } from '../../../src/model/forward.js';
import { openModel } from '../../../src/model/graph.js';
import type { WeightSource } from '../../../src/model/source.js';
import { planQuantization } from '../../../src/quantize/plan.js';
import { quantizeCheckpoint } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { sampled } from '../../sample.js';
import { GOLDENS, writeWidened } from '../model/fixtures.js';
import { DENSE, MIXTURES } from '../quantize/linears.js';

/** --method fmpq on every architecture: permutations and powers of two folded, codes of 4 and 8 bits read, on real blocks: an eighth at a time. */

const rt = createRuntime(2);
const scheme = schemeFromOptions({ bits: 8, groupSize: 128 });
const LENGTH = 40;

function calibration(sequences: readonly Int32Array[]): Calibration {
  const tokens = sequences.length * LENGTH;
  return {
    ...{ name: 'made', sha256: '0'.repeat(64), seed: 0, length: LENGTH, kind: 'windows' },
    sequences: [...sequences],
    tokens,
    available: sequences.length,
  };
}

async function logitsOf(source: WeightSource, sequences: readonly Int32Array[]): Promise<Float32Array> {
  const graph = openModel(source);
  const outer = await loadOuter(rt, source, graph);
  const [state] = await runForward(rt, source, graph, outer, [makeBatch(rt, sequences)]);
  const logits = graph.logits(rt, outer, state!.h);
  await rt.sync();
  return typed<Float32Array>(logits).slice();
}

/** Difference of a token's logits over those logits, by norm: the median token's. */
function logitError(got: Float32Array, want: Float32Array, vocab: number): number {
  assert.ok(got.every((value) => Number.isFinite(value)));
  const norm = (list: Float32Array) => Math.sqrt(list.reduce((sum, value) => sum + value ** 2, 0));
  const errors = Array.from({ length: want.length / vocab }, (_, t) => {
    const row = want.slice(t * vocab, (t + 1) * vocab);
    return norm(row.map((value, i) => got[t * vocab + i]! - value)) / norm(row);
  });
  return errors.sort((a, b) => a - b)[errors.length >> 1]!;
}

for (const arch of sampled('fmpq of architectures', GOLDENS, 8))
  test(`${arch}: fmpq quantizes every linear, and the model stays close to what it was`, async (t) => {
    const dir = mkdtempSync(path.join(tmpdir(), 'lpq-fmpq-arch-'));
    t.after(() => rmSync(dir, { recursive: true, force: true }));
    const from = path.join(dir, 'source');
    await writeWidened(arch, from);
    const sequences = [0, 1].map((s) =>
      Int32Array.from({ length: LENGTH }, (_, i) => (i * (37 + 10 * s) + 3 * s) % 64),
    );
    const source = SourceCheckpoint.open(from);
    t.after(() => source.close());
    const graph = openModel(source);
    // With any groups, to see all of them.
    const all = planQuantization(graph, {
      scheme: schemeFromOptions({ bits: 8, groupSize: 'channel' }),
      rules: [],
      lmHead: false,
    });
    assert.equal(all.size, DENSE[arch] ?? MIXTURES[arch]);
    const options = { ...FMPQ_DEFAULTS, share: 0.5, rows: 64 };
    const schemes = planQuantization(graph, { scheme, rules: [], lmHead: false });
    const plan = await planFmpq(rt, source, graph, schemes, sequences, options);
    assert.equal(plan.forms.size, all.size);
    const output = path.join(dir, 'out');
    const summary = await quantizeCheckpoint([rt], {
      source: from,
      output,
      scheme,
      rules: [],
      quantizer: fmpqQuantizer(gptqQuantizer({ ...GPTQ_DEFAULTS, clipSteps: 2, rounds: 1 }), options, plan),
      calibration: calibration(sequences),
      lmHead: false,
      options: {},
      version: 'test',
      rewrite: plan.rewrite,
      activations: plan.forms,
    });
    assert.equal(summary.modules.length, plan.forms.size);
    const quantized = CanonicalSource.open(output, rt);
    const error = logitError(await logitsOf(quantized, sequences), await logitsOf(source, sequences), graph.vocab);
    quantized.close();
    const count = (done: string) => plan.sites.filter((site) => site.done === done).length;
    t.diagnostic(
      `${plan.forms.size} of ${all.size} linears, ${count('folded')} sites folded, ${count('gathered')} gathered, ${plan.scaled} scaled, ${(100 * plan.share.macs).toFixed(0)} % of the multiplications with 4 bits: relative error ${error.toExponential(2)}`,
    );
    assert.ok(plan.share.macs > 0.3 && plan.share.macs < 0.7);
    // Codes of 4 bits reach some 2.7 deviations with 7 steps: rounding adds 2.7 / 7 / sqrt(12) = 0.11 of an input, to half of
    // the inputs 0.08; some eight linears in a row, less what the residual stream keeps: sqrt(8) times that. Mixtures, whose
    // experts' shares are of rounded inputs too, may have a third more.
    assert.ok(error > 0 && error < (MIXTURES[arch] ? 0.3 : 0.22), `${error}`);
  });
