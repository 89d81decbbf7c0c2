import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { createRuntime } from '../../../native/binding.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { quantizeCheckpoint } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { rtnQuantizer } from '../../../src/rtn/quantizer.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { writeWidened } from '../model/fixtures.js';

/** Norms after the branches, xIELU, latent attention beside experts, heads of two widths: from a checkpoint to a proven artifact. */

const rt = createRuntime(2);

for (const [name, linears] of Object.entries({
  olmo3: 14,
  apertus: 12,
  gemma3n_text: 19,
  gemma4_text: 24,
  glm4_moe_lite: 28,
  mimo_v2_flash: 23,
}))
  test(`${name}: packed for sm80, every module is proven to be what was quantized`, async (t) => {
    const dir = mkdtempSync(path.join(tmpdir(), 'lpq-pack-arch-'));
    t.after(() => rmSync(dir, { recursive: true, force: true }));
    const [source, quantized, packed] = ['source', 'quantized', 'packed'].map((part) => path.join(dir, part));
    await writeWidened(name, source!);
    await quantizeCheckpoint([rt], {
      source: source!,
      output: quantized!,
      scheme: schemeFromOptions({ bits: 4, groupSize: 32 }),
      rules: [],
      quantizer: rtnQuantizer(),
      calibration: undefined,
      lmHead: false,
      options: {},
      version: 'test',
    });
    const input = CanonicalCheckpoint.open(quantized!);
    t.after(() => input.close());
    assert.equal(input.moduleNames().length, linears);
    await packCheckpoint({ input, target: 'sm80', output: packed!, runtime: rt });
    const report = await verifyArtifact({ dir: packed!, runtime: rt, against: quantized! });
    assert.ok(report.ok, JSON.stringify(report.failures ?? report));
    assert.equal(report.modules.length, linears);
  });
