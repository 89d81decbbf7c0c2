import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { dequantizeModule } from '../../../formats/canonical/dequantize.js';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { createRuntime, fromTyped, typed } from '../../../native/binding.js';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import { LpqError } from '../../../src/core/error.js';
import { GPTQ_DEFAULTS, type GptqOptions } from '../../../src/gptq/options.js';
import { gptqQuantizer } from '../../../src/gptq/quantizer.js';
import { disposeModule, type QuantizedModule } from '../../../src/quantize/result.js';
import { roundWeight } from '../../../src/quantize/round.js';
import { type QuantizeRequest, quantizeCheckpoint } from '../../../src/quantize/run.js';
import { checkSparsity, printScheme, type SchemeOptions, schemeFromOptions } from '../../../src/quantize/scheme.js';
import { dequantizeResult } from '../../../src/quantize/stored.js';
import { rtnQuantizer } from '../../../src/rtn/quantizer.js';
import { random } from './reference.js';

const rt = createRuntime(2);
const tiny = path.join(shareDirectory(), 'tiny-llama');
const [n, k] = [6, 64];

function refused(code: string, text: RegExp): (error: unknown) => boolean {
  return (error) => error instanceof LpqError && error.code === code && text.test(error.message);
}

const next = random(3);
const normal = () => next() + next() + next() + next() - 2;
const weights = Float32Array.from({ length: n * k }, () => normal() * 0.1);

/** Second moments of correlated inputs, some channels stronger than others. */
const h = (() => {
  const sum = new Float64Array(k * k);
  const x = new Float64Array(k);
  for (let row = 0; row < 3 * k; row++) {
    const shared = normal();
    for (let c = 0; c < k; c++) x[c] = (normal() + shared) * (c % 5 === 0 ? 3 : 1);
    for (let a = 0; a < k; a++) for (let b = 0; b < k; b++) sum[a * k + b]! += x[a]! * x[b]!;
  }
  return sum;
})();

/** Of every four two stay, and the others are exactly 0. Returns tr(D H Dᵀ). */
async function checked(result: QuantizedModule, what: string): Promise<number> {
  const mask = result.mask!.bytes();
  assert.deepEqual(result.mask!.shape, [n, k / 8], what);
  const dense = dequantizeResult(rt, result);
  await rt.sync();
  const got = typed<Float32Array>(dense);
  for (let i = 0; i < n * k; i += 4) {
    const kept = [0, 1, 2, 3].filter((c) => (mask[(i + c) >> 3]! >> ((i + c) & 7)) & 1);
    assert.equal(kept.length, 2, `${what}: four ${i / 4}`);
    for (const c of [0, 1, 2, 3]) if (!kept.includes(c)) assert.ok(got[i + c] === 0, `${what}: ${i + c}`);
  }
  let error = 0;
  for (let row = 0; row < n; row++)
    for (let a = 0; a < k; a++)
      for (let b = 0; b < k; b++)
        error +=
          (got[row * k + a]! - weights[row * k + a]!) * h[a * k + b]! * (got[row * k + b]! - weights[row * k + b]!);
  dense.dispose();
  disposeModule(result);
  return error;
}

async function gptq(options: SchemeOptions, change: Partial<GptqOptions> = {}): Promise<number> {
  const scheme = schemeFromOptions({ groupSize: 32, ...options, sparsity: '2:4' });
  const feed = gptqQuantizer({ ...GPTQ_DEFAULTS, ...change }).feed(rt, { h: fromTyped('f64', [k, k], h), tokens: 100 });
  const result = await feed.solve('m', fromTyped('f32', [n, k], weights), scheme);
  feed.dispose();
  return checked(result, `gptq ${printScheme(scheme)} ${JSON.stringify(change)}`);
}

async function rtn(options: SchemeOptions): Promise<number> {
  const scheme = schemeFromOptions({ groupSize: 32, ...options, sparsity: '2:4' });
  return checked(await roundWeight(rt, fromTyped('f32', [n, k], weights), scheme, 'm'), `rtn ${printScheme(scheme)}`);
}

test('every kind of grid: two of four stay and the others are 0; solving beats rounding', async () => {
  const kinds: SchemeOptions[] = [
    { bits: 4 },
    { dtype: 'u4' },
    { bits: 4, asym: true },
    { dtype: 'i4', asym: true },
    { bits: 1, asym: true },
    { bits: 2 },
    { bits: 8 },
    { bits: 3, groupSize: 'channel' },
    { bits: 4, groupSize: 2 },
    { dtype: 'f6e3m2', scaleDtype: 'bf16' },
    { dtype: 'mxfp4' },
    { dtype: 'nvfp4', groupSize: 16 },
  ];
  for (const kind of kinds) {
    const [solved, rounded] = [await gptq(kind), await rtn(kind)];
    assert.ok(solved < 0.7 * rounded, `${JSON.stringify(kind)}: ${solved} against ${rounded}`);
  }
});

test('every order keeps the fours together, and sweeps help', async () => {
  const once = await gptq({ bits: 4 }, { order: 'none', rounds: 0 });
  for (const order of ['static', 'group', 'none'] as const) {
    const swept = await gptq({ bits: 4 }, { order });
    assert.ok(swept < once, `${order}: ${swept} against ${once}`);
  }
});

test('what cannot be 2:4 is refused', async () => {
  assert.throws(
    () => schemeFromOptions({ bits: 1, sparsity: '2:4' }),
    refused('LPQ_SPARSITY', /u1 has no code for 0, which/),
  );
  assert.equal(printScheme(schemeFromOptions({ bits: 4, sparsity: '2:4' })), 'i4 g128 2:4');
  assert.equal(printScheme(schemeFromOptions({ bits: 4, sparsity: 'none' })), 'i4 g128');
  const scheme = schemeFromOptions({ bits: 4, groupSize: 'channel', sparsity: '2:4' });
  assert.throws(() => checkSparsity(scheme, 'x.proj', 66), refused('LPQ_SPARSITY', /x\.proj has 66/));
  const odd = fromTyped('f32', [2, 6], new Float32Array(12));
  await assert.rejects(roundWeight(rt, odd, scheme, 'm'), refused('LPQ_SPARSITY', /m has 6/));
  const broken = fromTyped('f32', [1, 8], Float32Array.of(1, 2, 3, Number.NaN, 5, 6, 7, 8));
  await assert.rejects(roundWeight(rt, broken, scheme, 'm'), refused('LPQ_MODULE_NUMERICS', /m holds a value/));
});

function request(t: TestContext): QuantizeRequest {
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-sparse-'));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  return {
    source: tiny,
    output: path.join(dir, 'out'),
    scheme: schemeFromOptions({ bits: 4, sparsity: '2:4' }),
    rules: [{ match: /down_proj/, scheme: schemeFromOptions({ bits: 8 }) }],
    quantizer: rtnQuantizer(),
    calibration: undefined,
    lmHead: false,
    options: {},
    version: '0',
  };
}

test('a checkpoint tells which modules are sparse, and holds what is 0', async (t) => {
  const wanted = request(t);
  const { bitsPerWeight } = await quantizeCheckpoint([rt], wanted);
  assert.ok(bitsPerWeight > 3.125 && bitsPerWeight < 8);
  const checkpoint = CanonicalCheckpoint.open(wanted.output);
  const name = 'model.layers.1.mlp.up_proj';
  assert.equal(checkpoint.module('model.layers.1.mlp.down_proj').sparsity, 'none');
  assert.equal(checkpoint.module(name).sparsity, '2:4');
  assert.equal(checkpoint.module(name).quality?.bitsPerWeight, 3.125);
  assert.deepEqual(Object.keys(checkpoint.module(name).sha256), ['codes', 'scales', 'mask']);
  assert.deepEqual(await checkpoint.verifyHashes(), []);
  const weight = await dequantizeModule(rt, checkpoint, name);
  const values = typed<Float32Array>(weight);
  for (let i = 0; i < values.length; i += 4)
    assert.ok(values.subarray(i, i + 4).filter((value) => value === 0).length >= 2);
  checkpoint.close();
});
