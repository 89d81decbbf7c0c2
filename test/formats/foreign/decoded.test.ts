import assert from 'node:assert/strict';
import { existsSync, readFileSync, rmSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { openSource, SourceCheckpoint } from '../../../formats/canonical/source.js';
import { allowRequantizing } from '../../../formats/foreign/decoded.js';
import { createRuntime, typed } from '../../../native/binding.js';
import { lpq, model } from '../../src/cli/lpq.js';
import { scratch } from '../scratch.js';
import { awqTensors, type Encoded, gptqTensors, packedTensors, randomCodes, weightOf } from './encode.js';
import { gptqSettings, packedSettings, writeModel } from './mini.js';

const rt = createRuntime(1);
const root = scratch();
let count = 0;
const fresh = (): string => path.join(root, String(count++));

test('codes of other tools as floats: by the definition, and as the native decoder has them', async () => {
  const cases: [readonly Encoded[], object, Float32Array][] = [];
  for (const [bits, symmetric, actOrder] of [
    [4, true, false],
    [4, false, true],
    [3, false, false],
    [8, true, false],
  ] as const) {
    const c = randomCodes({ n: 32, k: 64, bits, group: 32, symmetric, actOrder, seed: bits });
    const settings = gptqSettings(bits, 32, { sym: symmetric, desc_act: actOrder, checkpoint_format: 'gptq_v2' });
    cases.push([gptqTensors('m', c, 'v2'), settings, weightOf(c)]);
  }
  const awq = randomCodes({ n: 64, k: 64, bits: 4, group: 32, seed: 5 });
  const stated = { quant_method: 'awq', zero_point: true, version: 'gemm', bits: 4, group_size: 32 };
  cases.push([awqTensors('m', awq), stated, weightOf(awq)]);
  const packed = randomCodes({ n: 5, k: 64, bits: 5, group: 32, symmetric: true, seed: 6 });
  cases.push([
    packedTensors('m', packed, { symmetric: true, packing: 'dense', gIdx: false }),
    packedSettings(5, 32, true, {}),
    weightOf(packed),
  ]);
  for (const [tensors, settings, want] of cases) {
    const dir = await writeModel(fresh(), { tensors, settings });
    const other = openSource(dir, rt);
    const native = typed<Float32Array>(await other.tensor('m.weight')).slice();
    other.close();
    const closed = SourceCheckpoint.open(dir);
    assert.ok(!closed.has('m.weight'));
    closed.close();
    allowRequantizing(dir);
    const source = SourceCheckpoint.open(dir);
    assert.deepEqual([...source.names()], ['m.weight']);
    const got = typed<Float32Array>(await source.tensor('m.weight'));
    assert.deepEqual(got, want);
    assert.deepEqual(got, native);
    source.close();
  }
});

test('lpq quantize --requantize takes a GPTQ model, with a warning; nothing else takes it', async () => {
  const at = (name: string) => path.join(root, name);
  for (const args of [
    ['quantize', model, '--bits', '4', '--method', 'rtn', '-o', at('q4')],
    ['pack', at('q4'), '--target', 'gptq', '-o', at('gptq')],
  ]) {
    const ran = await lpq([...args, '--quiet']);
    assert.equal(ran.code, 0, ran.stderr);
  }
  rmSync(path.join(at('gptq'), 'lpq.json'));
  const again = ['quantize', at('gptq'), '--bits', '3', '--method', 'rtn', '-o', at('q3')];
  const refused = await lpq(again);
  assert.equal(refused.code, 4);
  assert.match(refused.stderr, /not an unquantized checkpoint[\s\S]*--requantize/);
  const ran = await lpq([...again, '--requantize']);
  assert.equal(ran.code, 0, ran.stderr);
  assert.match(ran.stderr, /28 modules of .* exist only in 4 bits: quantizing them again loses quality a second/);
  assert.ok(!existsSync(path.join(at('q3'), 'quantize_config.json')));
  const { modules, provenance } = JSON.parse(readFileSync(path.join(at('q3'), 'lpq.json'), 'utf8'));
  assert.equal(Object.keys(modules).length, 28);
  assert.equal(provenance.options.requantize, true);
  const verified = await lpq(['pack', at('q3'), '--target', 'sm90', '-o', at('sm90'), '--quiet']);
  assert.equal(verified.code, 0, verified.stderr);
  const idle = await lpq(['quantize', model, '--requantize', '--bits', '3', '--method', 'rtn', '-o', at('x')]);
  assert.equal(idle.code, 2);
  assert.match(idle.stderr, /--requantize has no effect/);
});
