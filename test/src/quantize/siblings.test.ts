import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { createRuntime, fromTyped, typed } from '../../../native/binding.js';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import { GPTQ_DEFAULTS } from '../../../src/gptq/options.js';
import { gptqQuantizer } from '../../../src/gptq/quantizer.js';
import type { Quantizer } from '../../../src/quantize/quantizer.js';
import { disposeModule } from '../../../src/quantize/result.js';
import { roundWeight } from '../../../src/quantize/round.js';
import { quantizeCheckpoint } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { siblingRuns, solveSiblings } from '../../../src/quantize/siblings.js';
import { rtnQuantizer } from '../../../src/rtn/quantizer.js';

const rt = createRuntime(2);
const nvfp4 = schemeFromOptions({ dtype: 'nvfp4' });
const root = mkdtempSync(path.join(os.tmpdir(), 'lpq-siblings-'));
after(() => rmSync(root, { recursive: true, force: true }));

function matrix(n: number, k: number, seed: number, size: number): Float32Array<ArrayBuffer> {
  return Float32Array.from({ length: n * k }, (_, i) => size * Math.sin(seed + i * 0.737) * Math.cos(i * i * 0.01));
}

test('only equal schemes with a second level are solved together, in order', () => {
  const other = schemeFromOptions({ bits: 4 });
  const schemes = new Map([
    ['q', nvfp4],
    ['k', other],
    ['v', nvfp4],
    ['g', schemeFromOptions({ dtype: 'f4e2m1', groupSize: 32, scaleDtype: 'e4m3' })],
    ['u', other],
  ]);
  assert.deepEqual(
    siblingRuns(['q', 'k', 'skipped', 'v', 'g', 'u'], (name) => schemes.get(name)),
    [['q', 'v'], ['k'], ['g'], ['u']],
  );
});

test('siblings get the codes and scales of one matrix of all their rows', async () => {
  const k = 64;
  const parts = [
    { name: 'q', n: 24, values: matrix(24, k, 1, 0.3) },
    { name: 'k', n: 8, values: matrix(8, k, 2, 2.5) },
    { name: 'v', n: 40, values: matrix(40, k, 3, 0.01) },
  ];
  const all = Float32Array.from(parts.flatMap(({ values }) => [...values]));
  const whole = await roundWeight(rt, fromTyped('f32', [72, k], all), nvfp4, 'all');
  const solver = rtnQuantizer().feed(rt, undefined);
  const siblings = parts.map(({ name, n, values }) => ({ name, weight: fromTyped('f32', [n, k], values) }));
  const solved = await solveSiblings(rt, solver, siblings, nvfp4);
  let at = 0;
  for (const [i, { n }] of parts.entries()) {
    const { codes, scales, globalScale, shape } = solved[i]!;
    assert.deepEqual(shape, [n, k]);
    // The top of the largest group, 6 * 448 steps, is the largest weight of all three.
    assert.equal(globalScale, Math.fround(Math.fround(all.reduce((a, b) => Math.max(a, Math.abs(b)), 0) / 6) / 448));
    assert.deepEqual([...codes.bytes()], [...whole.codes.bytes(at * (k / 2), n * (k / 2))]);
    assert.deepEqual([...scales.bytes()], [...whole.scales.bytes(at * (k / 16), n * (k / 16))]);
    at += n;
  }
  for (const module of [whole, ...solved]) disposeModule(module);
  parts[1]!.values[3 * k + 5] = Number.NaN;
  const spoiled = parts.map(({ name, n, values }) => ({ name, weight: fromTyped('f32', [n, k], values) }));
  await assert.rejects(
    solveSiblings(rt, solver, spoiled, nvfp4),
    (error: { code: string; message: string; got: string }) => {
      assert.equal(error.code, 'LPQ_MODULE_NUMERICS');
      assert.match(error.message, /weight of k holds/);
      assert.match(error.got, /row 3, column 5/);
      return true;
    },
  );
});

const methods: readonly (readonly [string, Quantizer])[] = [
  ['rtn', rtnQuantizer()],
  ['gptq', gptqQuantizer({ ...GPTQ_DEFAULTS, rounds: 1, sweeps: 1 })],
];
for (const [name, quantizer] of methods)
  for (const lanes of [1, 2])
    test(`${name} on ${lanes} lanes: q/k/v and gate/up share their second level`, async () => {
      const output = path.join(root, `${name}${lanes}`);
      const sequences = [0, 1, 2, 3].map((row) =>
        Int32Array.from({ length: 64 }, (_, i) => 3 + ((row * 991 + i * 37) % 1900)),
      );
      await quantizeCheckpoint(
        Array.from({ length: lanes }, () => createRuntime(1)),
        {
          source: path.join(shareDirectory(), 'tiny-llama'),
          output,
          scheme: nvfp4,
          quantizer,
          calibration:
            name === 'rtn'
              ? undefined
              : {
                  name: 'made',
                  sha256: '0'.repeat(64),
                  seed: 0,
                  length: 64,
                  kind: 'windows',
                  sequences,
                  tokens: 256,
                  available: 4,
                },
          rules: [],
          lmHead: false,
          options: {},
          version: 'test',
        },
      );
      const checkpoint = CanonicalCheckpoint.open(output);
      for (let layer = 0; layer < 4; layer++) {
        const level = (part: string) => checkpoint.globalScale(`model.layers.${layer}.${part}`);
        assert.equal(new Set(['q', 'k', 'v'].map((part) => level(`self_attn.${part}_proj`))).size, 1);
        assert.equal(level('mlp.gate_proj'), level('mlp.up_proj'));
        assert.notEqual(level('self_attn.q_proj'), level('self_attn.o_proj'));
        // One that belongs to all takes up the largest of their groups, and not more.
        const most = Math.max(
          ...['q', 'k', 'v'].map((part) =>
            typed<Uint8Array>(checkpoint.require(`model.layers.${layer}.self_attn.${part}_proj`, 'scales')).reduce(
              (a, b) => Math.max(a, b),
              0,
            ),
          ),
        );
        assert.ok(most >= 0x76 && most <= 0x7e, `the largest scale has the pattern ${most.toString(16)}`);
      }
      checkpoint.close();
    });
