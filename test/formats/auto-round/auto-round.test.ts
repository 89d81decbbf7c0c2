import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { openSource } from '../../../formats/canonical/source.js';
import { openForeign } from '../../../formats/foreign/open.js';
import { createRuntime, typed } from '../../../native/binding.js';
import { awqTensors, gptqTensors, randomCodes, weightOf } from '../foreign/encode.js';
import { writeModel } from '../foreign/mini.js';
import { designed, scratch } from '../scratch.js';

const rt = createRuntime(1);
const root = scratch();
let count = 0;
const fresh = (): string => path.join(root, String(count++));

/** quantization_config as AutoRound 0.16 writes it. */
function settings(bits: number, group: number, more: object = {}): object {
  return {
    ...{ quant_method: 'auto-round', packing_format: 'auto_round:auto_gptq', data_type: 'int', bits, sym: true },
    ...{ group_size: group, iters: 200, autoround_version: '0.16.1', block_name_to_quantize: 'model.layers' },
    ...more,
  };
}

test("AutoRound's own format: the tensors of GPTQ v1, symmetric and not, under either of its names", async () => {
  for (const quant_method of ['auto-round', 'intel/auto-round', 'auto_round'])
    for (const [bits, symmetric] of [
      [4, true],
      [2, false],
      [3, false],
      [8, true],
    ] as const) {
      const c = randomCodes({ n: 32, k: 64, bits, group: 32, symmetric, seed: bits });
      const tensors = gptqTensors('m', c, 'v1', false);
      const dir = await writeModel(fresh(), {
        tensors,
        settings: settings(bits, 32, { quant_method, sym: symmetric }),
      });
      const source = openSource(dir, rt);
      assert.deepEqual(typed<Float32Array>(await source.tensor('m.weight')), weightOf(c));
      source.close();
    }
});

test('extra_config: modules of other bits and groups by name and by expression; those in floats are none', async () => {
  const [first, second, third] = [4, 8, 2].map((bits, i) =>
    randomCodes({ n: 32, k: 64, bits, group: i === 2 ? 64 : 32, symmetric: true, seed: bits }),
  ) as [ReturnType<typeof randomCodes>, ReturnType<typeof randomCodes>, ReturnType<typeof randomCodes>];
  const cases = { 'a.q': first, 'a.k': second, 'b.12.v': third };
  const tensors = Object.entries(cases).flatMap(([name, c]) => gptqTensors(name, c, 'v1', false));
  const extra = {
    'a.k': { bits: 8 },
    'b\\.\\d+\\.v': { bits: 2, group_size: 64 },
    lm_head: { bits: 16, data_type: 'fp' },
  };
  const dir = await writeModel(fresh(), { tensors, settings: settings(4, 32, { extra_config: extra }) });
  const { canonical } = openForeign(dir);
  assert.deepEqual(
    canonical.moduleNames().map((name) => [name, canonical.module(name).type]),
    [
      ['a.k', 'u8'],
      ['a.q', 'u4'],
      ['b.12.v', 'u2'],
    ],
  );
  canonical.close();
  const source = openSource(dir, rt);
  for (const [name, c] of Object.entries(cases))
    assert.deepEqual(typed<Float32Array>(await source.tensor(`${name}.weight`)), weightOf(c), name);
  source.close();
});

test("AutoRound's packing of AWQ", async () => {
  const c = randomCodes({ n: 64, k: 64, bits: 4, group: 32, seed: 7 });
  const own = settings(4, 32, { packing_format: 'auto_round:auto_awq', sym: false });
  const dir = await writeModel(fresh(), { tensors: awqTensors('m', c), settings: own });
  const source = openSource(dir, rt);
  assert.deepEqual(typed<Float32Array>(await source.tensor('m.weight')), weightOf(c));
  source.close();
});

test('refused by name: packings and types that lpq does not read, settings that mean nothing', async () => {
  const c = randomCodes({ n: 32, k: 64, bits: 4, group: 32, symmetric: true, seed: 1 });
  const tensors = gptqTensors('m', c, 'v1', false);
  for (const [more, says] of [
    [{ packing_format: 'auto_round:fp8' }, /'packing_format' cannot be used.*auto_round:fp8.*auto_round:auto_gptq/],
    [{ data_type: 'mx_fp' }, /'data_type' cannot be used/],
    [{ extra_config: { m: 4 } }, /extra_config of 'm'/],
    [{ bits: 5 }, /bits of the GPTQ configuration/],
    [{ packing_format: 'auto_round:auto_awq', extra_config: { m: { bits: 2 } } }, /modules of one kind/],
  ] as const) {
    const dir = await writeModel(fresh(), { tensors, settings: settings(4, 32, more) });
    assert.throws(() => openForeign(dir), designed('LPQ_CONFIG', says));
  }
  // A tampered directory: the settings state other bits than the tensors hold.
  const dir = await writeModel(fresh(), { tensors, settings: settings(8, 32) });
  assert.throws(() => openForeign(dir), designed('LPQ_FOREIGN', /qzeros|qweight|bits/));
});
