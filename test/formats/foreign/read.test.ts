import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { openSource } from '../../../formats/canonical/source.js';
import { openForeign } from '../../../formats/foreign/open.js';
import { createRuntime, typed } from '../../../native/binding.js';
import { scratch } from '../scratch.js';
import { awqTensors, type Codes, type Encoded, gptqTensors, packedTensors, randomCodes, weightOf } from './encode.js';
import { gptqSettings, packedSettings, writeModel } from './mini.js';
import { expectRoundTrip } from './round-trip.js';

const rt = createRuntime(1);
const root = scratch();
let count = 0;
const fresh = (): string => path.join(root, String(count++));

/** Rows of a little-endian bitstream by big integers. */
function streamOf({ n, k, bits, codes }: Codes): number[] {
  const bytes: number[] = [];
  for (let row = 0; row < n; row++) {
    let big = 0n;
    for (let i = 0; i < k; i++) big |= BigInt(codes[row * k + i] as number) << BigInt(i * bits);
    for (let b = 0; b < Math.ceil((k * bits) / 8); b++) bytes.push(Number((big >> BigInt(8 * b)) & 255n));
  }
  return bytes;
}

/** Opens what was written and compares every part, and the weight, with the definition. */
async function expectRead(tensors: readonly Encoded[], settings: object, c: Codes): Promise<string> {
  const dir = await writeModel(fresh(), { tensors, settings });
  const { canonical } = openForeign(dir);
  assert.deepEqual(canonical.moduleNames(), ['m']);
  assert.deepEqual(canonical.module('m').shape, [c.n, c.k]);
  assert.deepEqual([...typed<Uint8Array>(canonical.require('m', 'codes'))], streamOf(c));
  assert.deepEqual([...typed<Uint16Array>(canonical.require('m', 'scales'))], c.scales);
  const { zeros } = canonical.module('m');
  if (zeros.kind === 'const') assert.deepEqual(new Set(c.zeros), new Set([zeros.value]));
  else assert.deepEqual([...typed<Uint8Array>(canonical.require('m', 'zeros'))], c.zeros);
  const natural = c.gIdx.every((group, i) => group === Math.floor(i / (c.k / c.groups)));
  const index = canonical.part('m', 'g_idx');
  if (index) assert.deepEqual([...typed<Int32Array>(index)], c.gIdx);
  else assert.ok(natural);
  canonical.close();
  const source = openSource(dir, rt);
  assert.deepEqual([...source.names()], ['m.weight']);
  // Products of an integer below 2^9 and an f16 scale are exact in f32.
  assert.deepEqual(typed<Float32Array>(await source.tensor('m.weight')), weightOf(c));
  source.close();
  return dir;
}

const shapes = fc.record({
  bits: fc.constantFrom(2, 3, 4, 8),
  rows: fc.integer({ min: 1, max: 3 }),
  groups: fc.integer({ min: 1, max: 3 }),
  group: fc.constantFrom(32, 64),
  channel: fc.boolean(),
  symmetric: fc.boolean(),
  actOrder: fc.boolean(),
  seed: fc.nat(1000),
});

test('gptq and gptq_v2: any bits, groups, order and zero points read as defined, and pack to the same bytes', async () => {
  await fc.assert(
    fc.asyncProperty(shapes, async ({ bits, rows, groups, group, channel, symmetric, actOrder, seed }) => {
      const k = group * groups;
      const size = channel ? k : group;
      const c = randomCodes({ n: 32 * rows, k, bits, group: size, symmetric, actOrder: actOrder && !channel, seed });
      const convention = symmetric && seed % 2 === 0 ? 'v1' : 'v2';
      const settings = gptqSettings(bits, channel ? -1 : group, {
        sym: symmetric,
        desc_act: actOrder && !channel,
        checkpoint_format: convention === 'v1' ? 'gptq' : 'gptq_v2',
      });
      const dir = await expectRead(gptqTensors('m', c, convention), settings, c);
      await expectRoundTrip(rt, dir, fresh(), convention === 'v1' ? 'gptq' : 'gptq_v2');
    }),
    { numRuns: 40 },
  );
});

test('gptq v1 with zero points of 0, stored as -1, reads them as 0; without g_idx too', async () => {
  for (const bits of [2, 3, 4, 8]) {
    const c = randomCodes({ n: 32, k: 64, bits, group: 32, seed: bits });
    assert.ok(c.zeros.includes(0) && c.zeros.includes(2 ** bits - 1));
    for (const gIdx of [true, false])
      await expectRead(gptqTensors('m', c, 'v1', gIdx), gptqSettings(bits, 32, { sym: false }), c);
  }
});

test('awq: interleaved columns and true zero points', async () => {
  for (const [n, k, group] of [
    [8, 32, 32],
    [64, 96, 32],
    [24, 64, 64],
  ] as const)
    for (const names of [
      { bits: 4, group_size: group },
      { w_bit: 4, q_group_size: group },
    ]) {
      const c = randomCodes({ n, k, bits: 4, group, seed: n });
      await expectRead(awqTensors('m', c), { quant_method: 'awq', zero_point: true, version: 'gemm', ...names }, c);
    }
  // The worked example: values 1 to 8 are the word 0x86427531.
  const one = { n: 8, k: 1, bits: 4, groups: 1, gIdx: [0], codes: [1, 2, 3, 4, 5, 6, 7, 8] };
  const word = awqTensors('m', { ...one, zeros: new Array(8).fill(0), scales: new Array(8).fill(0) })[0]?.data;
  assert.equal((word as Int32Array)[0], 0x86427531 | 0);
});

test('pack-quantized: 1 to 8 bits, both packings, symmetric or not, read as defined and pack back to the same bytes', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.record({
        bits: fc.integer({ min: 1, max: 8 }),
        n: fc.integer({ min: 1, max: 40 }),
        groups: fc.integer({ min: 1, max: 3 }),
        channel: fc.boolean(),
        symmetric: fc.boolean(),
        whole: fc.boolean(),
        actOrder: fc.boolean(),
        seed: fc.nat(1000),
      }),
      async ({ bits, n, groups, channel, symmetric, whole, actOrder, seed }) => {
        const k = 32 * groups;
        const size = channel ? k : 32;
        const ordered = actOrder && !channel;
        const c = randomCodes({ n, k, bits, group: size, symmetric, actOrder: ordered, seed });
        const packing = whole && 32 % bits !== 0 ? 'whole' : 'dense';
        const settings = packedSettings(bits, channel ? null : 32, symmetric, { actorder: ordered ? 'group' : null });
        const dir = await expectRead(packedTensors('m', c, { symmetric, packing, gIdx: ordered }), settings, c);
        await expectRoundTrip(rt, dir, fresh(), 'compressed-tensors');
      },
    ),
    { numRuns: 60 },
  );
});
