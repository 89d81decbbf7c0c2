import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { createRuntime, typed } from '../../../native/binding.js';
import { artifactSource } from '../../../src/artifact/open.js';
import { verificationError } from '../../../src/verify/report.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { build } from './build.js';
import { CHANNEL, group, type ModuleSpec, NONE, weights } from './numbers.js';

const runtime = createRuntime(2);
const u8: ModuleSpec['zeros'] = { kind: 'int', dtype: 'u8' };
const i16: ModuleSpec['zeros'] = { kind: 'int', dtype: 'i16' };
const half: ModuleSpec['zeros'] = { kind: 'const', value: 8 };

const CASES: readonly [string, string, ModuleSpec][] = [
  ['grouped', 'marlin', { type: 'i4', n: 256, k: 256, granularity: group(128), zeros: NONE, layout: 'marlin' }],
  ['padded N', 'marlin', { type: 'u4', n: 130, k: 256, granularity: group(128), zeros: half, layout: 'marlin' }],
  ['channel, padded', 'marlin', { type: 'i4', n: 65, k: 141, granularity: CHANNEL, zeros: NONE, layout: 'marlin' }],
  ['one group', 'marlin', { type: 'i4', n: 64, k: 128, granularity: group(128), zeros: NONE, layout: 'marlin' }],
  ['small', 'marlin', { type: 'i4', n: 9, k: 256, granularity: group(128), zeros: NONE, layout: 'marlin' }],
  ['2 bits', 'gptq', { type: 'i2', n: 48, k: 64, granularity: group(32), zeros: NONE, layout: 'gptq' }],
  ['3 bits', 'gptq', { type: 'i3', n: 32, k: 64, granularity: group(32), zeros: NONE, layout: 'gptq' }],
  [
    '4 bits, act-order',
    'gptq',
    { type: 'i4', n: 16, k: 64, granularity: group(16), zeros: NONE, layout: 'gptq', actOrder: true },
  ],
  ['asymmetric v1', 'gptq', { type: 'u4', n: 24, k: 40, granularity: CHANNEL, zeros: u8, layout: 'gptq' }],
  ['asymmetric', 'gptq_v2', { type: 'u4', n: 16, k: 64, granularity: group(16), zeros: u8, layout: 'gptq_v2' }],
  ['signed zeros', 'gptq_v2', { type: 'i8', n: 6, k: 20, granularity: group(10), zeros: i16, layout: 'gptq_v2' }],
  ['3 bits', 'gptq_v2', { type: 'u3', n: 32, k: 96, granularity: group(32), zeros: u8, layout: 'gptq_v2' }],
  [
    'odd',
    'compressed-tensors',
    { type: 'i4', n: 5, k: 21, granularity: group(7), zeros: NONE, layout: 'compressed-tensors' },
  ],
  [
    'bf16',
    'compressed-tensors',
    { type: 'i8', n: 5, k: 20, granularity: CHANNEL, zeros: NONE, layout: 'compressed-tensors', scaleDtype: 'bf16' },
  ],
  [
    'asymmetric',
    'compressed-tensors',
    { type: 'i4', n: 11, k: 24, granularity: group(8), zeros: i16, layout: 'compressed-tensors' },
  ],
  [
    '5 bits, act-order',
    'compressed-tensors',
    { type: 'u5', n: 7, k: 33, granularity: group(11), zeros: u8, layout: 'compressed-tensors', actOrder: true },
  ],
  ['fallback', 'marlin', { type: 'f6e3m2', n: 5, k: 21, granularity: group(7), zeros: NONE, layout: 'carried' }],
  ['dense', 'gptq', { type: 'u3', n: 5, k: 21, granularity: group(7), zeros: u8, layout: 'dense' }],
];

for (const [title, target, spec] of CASES)
  test(`${target}, ${spec.type}, ${title}: passes, and reads back as the weights`, async () => {
    const companion: ModuleSpec = { ...CASES[5]![2], layout: 'gptq' };
    const modules = target === 'gptq' && spec.layout === 'dense' ? { a: companion, m: spec } : { m: spec };
    const built = await build(target, modules);
    try {
      for (const against of [undefined, built.quantized]) {
        const seen: string[] = [];
        const report = await verifyArtifact({
          dir: built.artifact,
          against,
          runtime,
          seed: 3,
          onModule: ({ name }) => seen.push(name),
        });
        assert.deepEqual(report.failures, []);
        assert.deepEqual(seen, Object.keys(modules));
        const emulator = report.checks.find(({ name }) => name === 'emulator');
        assert.equal(emulator?.status, spec.layout === 'marlin' ? 'passed' : 'skipped');
        if (spec.layout === 'marlin') assert.ok(report.modules[0]!.emulatorRatio! < 1);
        assert.equal(report.unproved.length, against ? 0 : 1);
      }
      const source = artifactSource(built.artifact, runtime);
      assert.deepEqual(
        [...source.names()].sort(),
        [...Object.keys(modules).map((m) => `${m}.weight`), 'embed_tokens.weight', 'norm.weight'].sort(),
      );
      assert.deepEqual(source.shape('m.weight'), [spec.n, spec.k]);
      const got = await source.tensor('m.weight');
      // (q - z) * s has at most 8 + 11 significant bits, so fp32 holds it exactly.
      assert.deepEqual(typed(got), Float32Array.from(weights(spec, built.numbers.get('m')!)));
      assert.deepEqual(typed<Uint16Array>(await source.tensor('norm.weight')), built.bias);
      source.close();
    } finally {
      built.remove();
    }
  });

test('a wrong code is named by module, row and column, with the codes got and expected', async () => {
  const spec = CASES[1]![2];
  const built = await build(
    'marlin',
    { 'model.layers.0.q': spec },
    {
      change: (tensors) => {
        const words = tensors[0]!.data as Int32Array;
        words[128 + 4 * 9 + 1]! ^= 1 << 20; // strip 1, k tile 0, lane 9, word 1, nibble 5: column 64+16+2, k 2*1+1+8
      },
    },
  );
  try {
    const report = await verifyArtifact({ dir: built.artifact, against: built.quantized, runtime });
    const { codes } = built.numbers.get('model.layers.0.q')!;
    const true_ = codes[82 * 256 + 11]!;
    const found = report.failures.find(({ check }) => check === 'against')!;
    assert.deepEqual([found.module, found.row, found.column], ['model.layers.0.q', 82, 11]);
    assert.deepEqual([found.got, found.expected], [true_ ^ 1, true_]);
    assert.ok(report.failures.some(({ check }) => check === 'canonical'));
    assert.equal(verificationError(report)?.exitCode, 1);
    const alone = await verifyArtifact({ dir: built.artifact, runtime });
    assert.deepEqual([...new Set(alone.failures.map(({ check }) => check))], ['canonical']);
  } finally {
    built.remove();
  }
});

test('the report and lpq.json are JSON; the manifest is sealed', async () => {
  const built = await build('gptq', { m: CASES[6]![2] });
  try {
    const report = await verifyArtifact({ dir: built.artifact, runtime, emulate: false });
    assert.deepEqual(JSON.parse(JSON.stringify(report)).checks, report.checks);
    assert.match(readFileSync(path.join(built.artifact, 'lpq.json'), 'utf8'), /"seal": "[0-9a-f]{64}"\n}\n$/);
  } finally {
    built.remove();
  }
});
