import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime } from '../../../native/binding.js';
import { type Made, made, sparse } from '../pack/checkpoint.js';
import { again, type LaneCall, laneCalls, mutants, packedHash } from './lanes.js';

const runtime = createRuntime(2);
const u8 = { kind: 'int', dtype: 'u8' } as const;
const i16 = { kind: 'int', dtype: 'i16' } as const;

/** Scales that are powers of two which f16 holds. */
function powers(module: Made): Made {
  return { ...module, data: { ...module.data, scales: Uint8Array.from(module.scales, (bits) => 118 + (bits & 7)) } };
}

/** Modules that take every branch of the programs of their layout. */
const MODULES: Readonly<Record<string, Readonly<Record<string, Made>>>> = {
  marlin: {
    a: made({ type: 'i4', n: 256, k: 384, group: 128 }),
    b: made({ type: 'u4', n: 250, k: 256, zeros: { kind: 'const', value: 8 }, seed: 2 }),
    c: made({ type: 'u4', n: 256, k: 160, group: 32, zeros: u8, seed: 3 }),
    d: made({ type: 'u8', n: 256, k: 128, group: 64, zeros: u8, seed: 4 }),
    e: made({ type: 'u4', n: 256, k: 128, zeros: u8, seed: 5 }),
    f: made({ type: 'i8', n: 256, k: 384, group: 64, seed: 6 }),
    g: made({ type: 'i4', n: 256, k: 256, group: 128, seed: 7 }),
  },
  sparse_marlin: {
    a: sparse({ type: 'i4', n: 256, k: 256, group: 128 }),
    b: sparse({ type: 'i8', n: 256, k: 1152, group: 128, seed: 2 }),
    c: sparse({ type: 'i4', n: 250, k: 128, seed: 3 }),
  },
  turbomind: {
    a: made({ type: 'u4', n: 128, k: 320, group: 32, zeros: u8 }),
    b: made({ type: 'u8', n: 128, k: 128, group: 64, zeros: u8, seed: 2 }),
    'experts.0.c': made({ type: 'i4', n: 128, k: 128, group: 64, seed: 3 }),
    d: powers(made({ type: 'f4e2m1', n: 128, k: 320, group: 32, scaleDtype: 'f8_e8m0', seed: 4 })),
    e: made({ type: 'f8e4m3', n: 64, k: 128, group: 64, seed: 5 }),
  },
  turbomind_sm70: {
    a: made({ type: 'u4', n: 128, k: 288, group: 32, zeros: u8 }),
    b: made({ type: 'i8', n: 64, k: 128, group: 64, seed: 2 }),
    c: powers(made({ type: 'f4e2m1', n: 64, k: 128, group: 32, scaleDtype: 'f8_e8m0', seed: 3 })),
  },
  tilus: {
    a: made({ type: 'u7', n: 64, k: 256, group: 32, zeros: u8 }),
    b: made({ type: 'i6', n: 64, k: 256, group: 64, zeros: i16, zeroRange: [-200, 300], seed: 2 }),
    c: made({ type: 'u5', n: 64, k: 160, group: 32, zeros: u8, seed: 3 }),
    d: made({ type: 'f3e1m1', n: 64, k: 256, seed: 4 }),
    e: made({ type: 'i2', n: 64, k: 1152, group: 32, seed: 5 }),
    f: made({ type: 'i3', n: 64, k: 128, group: 64, zeros: u8, zeroRange: [0, 200], seed: 6 }),
    g: made({ type: 'u1', n: 64, k: 128, zeros: { kind: 'const', value: 0.5 }, seed: 7 }),
  },
};

/** SHA-256 of what the packer makes of each module: a layout that changed together with its program would be noticed here. */
const GOLDEN: Readonly<Record<string, string>> = {
  marlin: '04f67501b743 0ce441f4172b d59b83fdc68b 7d80958db4c3 684a0f74bcd7 a8f2fa1cab15 7e8694821caa',
  sparse_marlin: '69bc2ae2208e dda3ce5a7d45 4dc0605920e3',
  turbomind: 'e4542d091a9b 4236b711cd96 68b9eab5fc65 c812270d5356 6e0db446616c',
  turbomind_sm70: '4921655742bc 894dea76e3ea afe3a6e67252',
  tilus: '843b13b11f2c 02481818ab7f 0d9f8fec4f5d 61ec1960ad15 030252c848c6 7703d3c63a84 d5e3d010bfc9',
};

/** Changes of a program that say the same as it does. */
const SAME: Readonly<Record<string, readonly string[]>> = {
  // The zero point is a stored code, and a code of an unsigned type is its number.
  marlin: ['z = numbers2(z)'],
  turbomind: [
    // Any number but 0 is true.
    'fused = 2',
    // K is never padded beyond the last group: `min` is for artifacts of others.
    ...['(groups + 1) - 1', 'groups + 1', 'groups - 0'].map((last) => `g = min(16 * step / groupSize, ${last})`),
    // The scale, the lower half, is never 0xffff.
    't = pair((st + 1) >> 16, st >> 16)',
    't = pair(st >> 16, (st + 1) >> 16)',
  ],
  turbomind_sm70: [
    ...['(groups + 1) - 1', 'groups + 1', 'groups - 0'].map((last) => `g = min(8 * step / groupSize, ${last})`),
    'b[i] = fma2(numbers2(q), pair(st, st), pair((st + 1) >> 16, st >> 16))',
    'b[i] = fma2(numbers2(q), pair(st, st), pair(st >> 16, (st + 1) >> 16))',
  ],
  // Of 16 pairs of 1 bit none comes behind the 16th.
  tilus: ['fields = 17 / bits'],
};

/** Whether a call's program in another text is refused, makes a register another than the weight, or an output too far off. */
async function isCaught(call: LaneCall, text: string): Promise<boolean> {
  try {
    const { registers, outputs } = await again(runtime, call, text);
    return registers.count + outputs.count > 0;
  } catch (error) {
    assert.match(String(error), /line \d+ of the lanes' program: |a tile is 1 to 256|8 or 16 tokens|whole tiles/);
    return true;
  }
}

async function anyCatches(calls: readonly LaneCall[], text: string): Promise<boolean> {
  for (const call of calls) if (await isCaught(call, text)) return true;
  return false;
}

for (const [target, modules] of Object.entries(MODULES))
  test(`${target}: a program that one word is changed in is refused, or shows wrong weights`, async () => {
    const calls = await laneCalls(runtime, target, modules);
    assert.equal(calls.map((call) => packedHash(call).slice(0, 12)).join(' '), GOLDEN[target]);
    // The last strip is enough: neither its place nor that of its last tile is 0.
    for (const { params } of calls) params.strips.splice(0, params.strips.length - 1);
    const survivors: string[] = [];
    for (const text of new Set(calls.map(({ params }) => params.program))) {
      const own = calls.filter(({ params }) => params.program === text);
      for (const call of own) assert.ok(!(await isCaught(call, text)));
      const all = [...mutants(text)];
      assert.ok(all.length > 50);
      for (const [what, mutant] of all)
        if (!(await anyCatches(own, mutant)) && !SAME[target]?.includes(what.replace(/^line \d+: /, '')))
          survivors.push(what);
    }
    assert.deepEqual(survivors, []);
  });
