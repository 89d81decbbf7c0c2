import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { createRuntime } from '../../../native/binding.js';
import { artifactSource } from '../../../src/artifact/open.js';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import { openTokenizer } from '../../../src/calibrate/tokenizer.js';
import { perplexity } from '../../../src/eval/perplexity.js';
import { openModel } from '../../../src/model/graph.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { quantizeCheckpoint } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { rtnQuantizer } from '../../../src/rtn/quantizer.js';
import { scratch } from '../../formats/scratch.js';

const MODEL = path.join(shareDirectory(), 'tiny-llama');
const TEXT = path.join(shareDirectory(), 'text', 'books-valid.txt');
const rt = createRuntime(2);

const ids = await (await openTokenizer(MODEL))(readFileSync(TEXT, 'utf8').slice(0, 20_000));

function windows(count: number, ctx: number): Int32Array[] {
  return Array.from({ length: count }, (_, i) => ids.slice(i * ctx, (i + 1) * ctx));
}

test('a packed model computes through the kernels of its layouts what its decoded weights say', async () => {
  const dir = scratch();
  for (const [i, options] of [
    { target: 'tilus', bits: 4, groupSize: 128 as const },
    { target: 'tilus', bits: 3, asym: true, groupSize: 64 as const },
    { target: 'tilus', dtype: 'f6e3m2', groupSize: 'channel' as const },
    { target: 'marlin', bits: 4, groupSize: 128 as const },
    { target: 'marlin', bits: 8, asym: true, groupSize: 32 as const },
    { target: 'turbomind', bits: 4, asym: true, groupSize: 64 as const },
    { target: 'turbomind', dtype: 'mxfp4' },
    { target: 'sparse_marlin', bits: 4, groupSize: 128 as const, sparsity: '2:4' as const },
  ].entries()) {
    const { target, ...scheme } = options;
    const quantized = path.join(dir, `q${i}`);
    const output = path.join(dir, `p${i}`);
    await quantizeCheckpoint([rt], {
      source: MODEL,
      output: quantized,
      scheme: schemeFromOptions(scheme),
      rules: [],
      quantizer: rtnQuantizer(),
      calibration: undefined,
      lmHead: false,
      options: {},
      version: 'test',
    });
    const input = CanonicalCheckpoint.open(quantized);
    await packCheckpoint({ input, target, output, runtime: rt });
    const [decoded, packed] = [artifactSource(output, rt), artifactSource(output, rt, true)];
    assert.ok('packed' in packed);
    assert.equal(packed.packed('model.layers.0.mlp.up_proj.weight')?.kernel.name, target);
    assert.equal(packed.packed('model.norm.weight'), undefined);
    const text = windows(2, 24);
    const want = await perplexity(rt, decoded, openModel(decoded), text, { ctx: 24 });
    const got = await perplexity(rt, packed, openModel(packed), text, { ctx: 24 });
    // Inputs and results of each linear are rounded to 2^-11 of themselves, some 60 times in a row, at random.
    assert.ok(Math.abs(got.nll - want.nll) < 2e-3, `${JSON.stringify(options)}: ${got.nll} and ${want.nll}`);
    assert.notEqual(got.nll, want.nll, 'the kernel was to be used');
    for (const each of [decoded, packed]) each.close();
  }
});
