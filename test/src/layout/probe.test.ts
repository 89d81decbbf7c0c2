import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { allocate, createRuntime, typed } from '../../../native/binding.js';
import { declaredMaps, type FragmentMap } from './fragment-maps.js';

// What a device was found to do (test/gpu/native/probe.cpp wrote these files) against the declarations of src/layout and against
// the tables of the verifier's emulator, which share nothing.

const fixtures = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../../../../test/fixtures');
const probes = readdirSync(fixtures).filter((name) => /^probe-.*\.json$/.test(name));

for (const name of probes) {
  const { device, when, maps } = JSON.parse(readFileSync(path.join(fixtures, name), 'utf8')) as {
    device: string;
    when: string;
    maps: Record<string, FragmentMap>;
  };

  test(`${device}, ${when}: the layouts are declared as the hardware has them`, () => {
    const declared = declaredMaps();
    assert.deepEqual(Object.keys(declared).sort(), Object.keys(maps).sort());
    for (const [map, want] of Object.entries(declared)) assert.deepEqual(maps[map], want, map);
  });

  test(`${device}, ${when}: so are the tables of the emulated kernels`, async () => {
    const rt = createRuntime(1);
    for (const operand of ['a', 'b', 'c'] as const) {
      const found = maps[`m16n8k16.f16 ${operand}`]!;
      const table = allocate('i32', [32, found[0]!.length, 2]);
      rt.enqueue('verify_fragments', [], [table], { operand });
      await rt.sync();
      assert.deepEqual([...typed<Int32Array>(table)], found.flat(2), operand);
    }
    rt.enqueue('verify_fragments', [], [allocate('i32', [32, 8, 2])], { operand: 'd' });
    await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT' });
  });
}

test('there is a probe of a device', () => assert.ok(probes.length > 0));
