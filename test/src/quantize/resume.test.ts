import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { createRuntime } from '../../../native/binding.js';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import type { Calibration } from '../../../src/calibrate/text.js';
import { GPTQ_DEFAULTS } from '../../../src/gptq/options.js';
import { gptqQuantizer } from '../../../src/gptq/quantizer.js';
import { type QuantizeRequest, quantizeCheckpoint, type Resumption } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { rtnQuantizer } from '../../../src/rtn/quantizer.js';
import { ARCHITECTURES } from '../model/fixtures.js';

const rt = createRuntime(2);
const tiny = path.join(shareDirectory(), 'tiny-llama');
const quick = { ...GPTQ_DEFAULTS, clipSteps: 2, rounds: 1 };

function scratch(t: TestContext): string {
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-resume-'));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

function tokens(sequences: number, length: number, vocab: number): Calibration {
  let state = 11;
  const next = () => {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0;
    return (state >>> 8) % vocab;
  };
  const list = Array.from({ length: sequences }, () => Int32Array.from({ length }, next));
  const facts = { name: 'made', sha256: '0'.repeat(64), seed: 0, kind: 'windows', available: sequences } as const;
  return { ...facts, length, sequences: list, tokens: sequences * length };
}

function hashes(dir: string): Record<string, string> {
  const names = readdirSync(dir, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
  const files = names.map((entry) => path.join(entry.parentPath, entry.name)).sort();
  return Object.fromEntries(
    files.map((file) => [path.relative(dir, file), createHash('sha256').update(readFileSync(file)).digest('hex')]),
  );
}

/** A run that fails once it has reached stage `at` (counted over the model); undefined: it came to its end before. */
async function stopAt(request: QuantizeRequest, at: number): Promise<Resumption | undefined> {
  let stages = 0;
  let resumption: Resumption | undefined;
  await assert.rejects(
    quantizeCheckpoint([rt], request, {
      onResume: (found) => {
        resumption = found;
      },
      onStage: () => {
        if (stages++ === at) throw new Error('stopped here');
      },
    }),
    /stopped here/,
  );
  return resumption;
}

const CASES: readonly (readonly [string, string | undefined, Partial<QuantizeRequest>])[] = [
  [
    'the original beside it (GPTAQ), asymmetric',
    undefined,
    { scheme: schemeFromOptions({ bits: 3, asym: true, groupSize: 64 }) },
  ],
  [
    'a second level of scales',
    undefined,
    { scheme: schemeFromOptions({ dtype: 'nvfp4' }), quantizer: gptqQuantizer({ ...quick, alpha: 0 }) },
  ],
  [
    'scales that are powers of two, by rounding',
    undefined,
    { scheme: schemeFromOptions({ dtype: 'mxfp6' }), quantizer: rtnQuantizer() },
  ],
  ['rules that leave a whole block', undefined, { rules: [{ match: /layers\.1\./, scheme: 'skip' }] }],
  ['experts', 'qwen3_moe', { scheme: schemeFromOptions({ bits: 4, groupSize: 32 }), calibration: tokens(2, 40, 64) }],
  [
    'an untied head',
    'llama-yarn-bias',
    { scheme: schemeFromOptions({ bits: 8, groupSize: 16 }), lmHead: true, calibration: tokens(2, 40, 64) },
  ],
];

for (const [what, arch, more] of CASES)
  test(`stopped again and again, with ${what}: the bytes of an undisturbed run`, {}, async (t) => {
    const dir = scratch(t);
    const request: QuantizeRequest = {
      source: arch === undefined ? tiny : path.join(ARCHITECTURES, arch),
      output: path.join(dir, 'whole'),
      scheme: schemeFromOptions({ bits: 4, groupSize: 64 }),
      rules: [],
      quantizer: gptqQuantizer(quick),
      calibration: tokens(2, 50, 2048),
      lmHead: false,
      options: {},
      version: 'test',
      ...more,
    };
    let stages = 0;
    const whole = await quantizeCheckpoint([rt], request, { onStage: () => stages++ });
    const output = path.join(dir, 'out');
    const resumed: QuantizeRequest = { ...request, output, partial: 'resume' };
    // In block 0: nothing is left. Then in the second block, in the third, ...
    await stopAt({ ...request, output }, 1);
    assert.deepEqual(readdirSync(dir), ['whole']);
    const perBlock = 4;
    assert.equal(await stopAt({ ...request, output }, perBlock + 2), undefined);
    assert.ok(existsSync(`${output}.partial`));
    await assert.rejects(quantizeCheckpoint([rt], { ...request, output }), { code: 'LPQ_PARTIAL_EXISTS' });
    const blocks = Math.floor(stages / perBlock); // lm_head is a stage of its own
    for (let at = 2; at < blocks; at++) assert.equal((await stopAt(resumed, perBlock + 1))?.blocks, at - 1);
    await assert.rejects(quantizeCheckpoint([rt], { ...resumed, version: 'other' }), {
      code: 'LPQ_RESUME',
      message: /version of lpq/,
    });
    let found: Resumption | undefined;
    const summary = await quantizeCheckpoint([rt], resumed, {
      onResume: (resumption) => {
        found = resumption;
      },
    });
    assert.deepEqual([found?.blocks, found?.of], [blocks - 1, blocks]);
    assert.deepEqual(hashes(output), hashes(path.join(dir, 'whole')));
    assert.equal(summary.bitsPerWeight, whole.bitsPerWeight);
    assert.deepEqual(
      summary.modules.map(({ seconds, ...line }) => line),
      whole.modules.map(({ seconds, ...line }) => line),
    );
    assert.deepEqual(readdirSync(dir).sort(), ['out', 'whole']);
  });

test('options that only the runner sees are named too', async (t) => {
  const dir = scratch(t);
  const request: QuantizeRequest = {
    source: tiny,
    output: path.join(dir, 'out'),
    scheme: schemeFromOptions({ bits: 4 }),
    rules: [{ match: /mlp/, scheme: 'skip' }],
    quantizer: gptqQuantizer(quick),
    calibration: tokens(1, 30, 2048),
    lmHead: false,
    options: {},
    version: 'test',
  };
  await stopAt(request, 5);
  for (const [change, names] of [
    [{ scheme: schemeFromOptions({ bits: 4, groupSize: 32 }) }, /scheme/],
    [{ rules: [] }, /rules/],
    [{ quantizer: gptqQuantizer({ ...quick, sweeps: 2 }) }, /options of the method/],
    [{ calibration: tokens(1, 31, 2048) }, /calibration tokens/],
    [{ options: { backend: 'cuda' } }, /--device/],
  ] as const)
    await assert.rejects(quantizeCheckpoint([rt], { ...request, partial: 'resume', ...change }), {
      code: 'LPQ_RESUME',
      message: names,
    });
});
