import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { openQuantized } from '../../../formats/canonical/source.js';
import { Checkpoint } from '../../../formats/safetensors/checkpoint.js';
import { createRuntime, typed } from '../../../native/binding.js';
import { artifactSource } from '../../../src/artifact/open.js';
import { LpqError } from '../../../src/core/error.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { PACK_TARGETS } from '../../../src/pack/targets/index.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { deepseek, e4m3, gptOss, type Published } from '../../formats/foreign/published.js';

/**
 * Models that are published in low bits, packed as they are for every target there is: their codes and scales are the canonical
 * form, so what is taken holds the very weights, which the test has from the formats' definitions, and the rest is refused.
 */

const rt = createRuntime(2);
const root = mkdtempSync(path.join(tmpdir(), 'lpq-low-targets-'));
after(() => rmSync(root, { recursive: true, force: true }));

const NO_INTEGERS = /codes, not integers/;
const WIDE = /its scales are f32/;
const SPARSE = /not 2:4 sparse/;

/** What becomes of a model's modules: all taken, searched for in blocks of another grid, or the reason of the refusal. */
type Outcome = RegExp | 'taken' | 'searched';
const HARDWARE = ['sm80', 'sm86', 'sm89', 'sm90', 'tilus', 'turbomind', 'turbomind_sm70'] as const;
const refusedBy = (hardware: RegExp | 'taken', w8a8: RegExp): Record<string, Outcome> => ({
  ...Object.fromEntries(HARDWARE.map((name) => [name, hardware])),
  ...Object.fromEntries(['marlin', 'gptq', 'gptq_v2', 'awq'].map((name) => [name, NO_INTEGERS])),
  comet: /its activations are not quantized/,
  w4a8: /not whole multiples of one a row/,
  sparse_marlin: SPARSE,
  'compressed-tensors': 'taken',
  'compressed-tensors-w8a8': w8a8,
  'compressed-tensors-w4a8': NO_INTEGERS,
  'compressed-tensors-w4a4': /make neither NVFP4|it holds f8e4m3 codes/,
  modelopt: /no E4M3 scales of 16 weights|FP8 of ModelOpt has one plain scale per row/,
  ...Object.fromEntries(
    PACK_TARGETS.filter(({ name }) => /^gguf/.test(name)).map(({ name }) => [
      name,
      name === 'gguf' ? NO_INTEGERS : 'searched',
    ]),
  ),
});

async function tryAll(name: string, { low, weights }: Published, outcome: Record<string, Outcome>) {
  // GGUF holds no tokenizer of words; without one it holds none.
  rmSync(path.join(low, 'tokenizer.json'), { force: true });
  assert.deepEqual(PACK_TARGETS.map((target) => target.name).sort(), Object.keys(outcome).sort());
  for (const target of Object.keys(outcome)) {
    const output = path.join(root, `${name}-${target}`);
    const expected = outcome[target]!;
    const input = await openQuantized(low);
    try {
      assert.deepEqual(input.moduleNames().sort(), [...weights.keys()].sort());
      if (expected instanceof RegExp) {
        const refused = packCheckpoint({ input, target, output, runtime: rt });
        await assert.rejects(refused, (error: LpqError) => {
          assert.ok(error instanceof LpqError && error.code === 'LPQ_TARGET', `${target}: ${error}`);
          assert.match(error.message, expected, target);
          return true;
        });
        continue;
      }
      const report = await packCheckpoint({ input, target, output, runtime: rt });
      assert.ok(
        report.modules.every(({ action }) => action !== 'fallback'),
        `${target}: ${report.modules.find(({ action }) => action === 'fallback')?.notes}`,
      );
    } finally {
      input.close();
    }
    const artifact = artifactSource(output, rt);
    for (const [module, weight] of expected === 'taken' ? weights : [])
      assert.deepEqual(
        typed<Float32Array>(await artifact.tensor(`${module}.weight`)).map((value) => value + 0),
        weight.map((value) => value + 0),
        `${target} ${module}`,
      );
    artifact.close();
    const verified = await verifyArtifact({
      dir: output,
      opened: await openQuantized(low),
      runtime: rt,
      emulate: target === 'tilus',
    });
    assert.deepEqual(verified.failures, [], target);
  }
}

test('GPT-OSS in MXFP4: every target takes its experts as they are, or says why not', async () => {
  const model = await gptOss(root);
  const compressed = ['', '-w8a8', '-w4a8', '-w4a4'].map((form) => `compressed-tensors${form}`);
  const byName = ['gptq', 'gptq_v2', 'awq', 'modelopt', ...compressed];
  await tryAll('gpt-oss', model, {
    ...refusedBy('taken', NO_INTEGERS),
    gguf: 'taken',
    ...Object.fromEntries(byName.map((target) => [target, /has no names for the experts/])),
  });
});

test('DeepSeek-V3 in FP8 blocks: every target takes them as they are, or says why not', async () => {
  const BLOCKS = /its scales cover blocks/;
  // F32 scales that are all powers of two lose nothing in the 16 bits that kernels read; others would.
  for (const form of ['f32', 'powers', 'bf16'] as const) {
    const model = await deepseek(root, form);
    await tryAll(`v3-${form}`, model, refusedBy(form === 'f32' ? WIDE : 'taken', BLOCKS));

    const output = path.join(root, `v3-${form}-compressed-tensors`);
    const { quantization_config: stated } = JSON.parse(readFileSync(path.join(output, 'config.json'), 'utf8'));
    assert.equal(stated.format, 'float-quantized');
    assert.deepEqual(
      [stated.config_groups.group_0.weights.strategy, stated.config_groups.group_0.weights.block_structure],
      ['block', [128, 128]],
    );
    const [before, written] = [Checkpoint.open(model.low), Checkpoint.open(output)];
    for (const [module, weight] of model.weights) {
      const codes = written.tensor(`${module}.weight`, 'u8');
      assert.deepEqual(codes.bytes(), before.tensor(`${module}.weight`, 'u8').bytes());
      const [n, k] = before.shape(`${module}.weight`) as [number, number];
      const scale = written.tensor(`${module}.weight_scale`);
      assert.deepEqual(scale.shape, [Math.ceil(n / 128), Math.ceil(k / 128)]);
      const wide =
        scale.dtype === 'f32'
          ? typed<Float32Array>(scale)
          : new Float32Array(Uint32Array.from(typed<Uint16Array>(scale), (bits) => bits << 16).buffer);
      assert.equal(scale.dtype, form === 'f32' ? 'f32' : 'bf16');
      const columns = scale.shape[1] as number;
      const decoded = Float32Array.from(
        codes.bytes(),
        (code, i) => e4m3(code) * wide[(Math.floor(i / k) >> 7) * columns + ((i % k) >> 7)]!,
      );
      assert.deepEqual(decoded, weight, module);
    }
    before.close();
    written.close();
  }
});
