import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { PackedModule } from '../../../formats/artifact/schema.js';
import { expectation } from '../../../src/verify/expectation.js';

const HASH = '0'.repeat(64);

/** An i4 module in groups of 64 as the packer would enter it, changed. */
function entry(layout: string, change: Partial<PackedModule> = {}): PackedModule {
  return {
    type: 'i4',
    shape: [256, 256],
    padded: [256, 256],
    granularity: { kind: 'group', size: 64 },
    scales: { dtype: 'f16', block: [1, 64], global: false },
    zeros: { kind: 'none' },
    layout,
    notes: [],
    tensors: {},
    canonical: { codes: HASH, scales: HASH },
    ...change,
  };
}

test('the tensors of a module, whole and in ranks', () => {
  const names = (module: PackedModule): string[] =>
    expectation('m', module).tensors.map(({ name, dtypes, shape }) => `${name} ${dtypes} ${shape.join('x')}`);
  assert.deepEqual(names(entry('tilus')), ['m.packed U8 8x2x2048', 'm.scales F16 8x4x32']);
  assert.deepEqual(names(entry('turbomind')), ['m.packed I32 8192', 'm.scales_zeros F16 4x256x2']);
  assert.deepEqual(names(entry('comet', codes(4, 8))), [
    'm.packed U8 16x2x1024',
    'm.scales F32 2x256',
    'm.bits U8 2',
    'm.clip F32 2',
    'm.blocks I32 2',
  ]);
  assert.deepEqual(names(entry('w4a8', twoLevel)), [
    'm.packed U8 16x2x1024',
    'm.group_scales I8 2x256',
    'm.channel_scales F32 256',
  ]);
  assert.deepEqual(names(entry('comet_two_level', { ...codes(4, 8), ...twoLevel })), [
    'm.packed U8 16x2x1024',
    'm.group_scales I8 2x256',
    'm.channel_scales F32 256',
    'm.bits U8 2',
    'm.clip F32 2',
    'm.blocks I32 2',
  ]);
  const ranks = entry('marlin', { padded: [256, 128], ranks: { count: 2, split: 'k' } });
  assert.deepEqual(names(ranks), [
    'm.rank0.B I32 8x512',
    'm.rank0.s F16 2x256',
    'm.rank1.B I32 8x512',
    'm.rank1.s F16 2x256',
  ]);
});

const group = (size: number): Partial<PackedModule> => ({
  granularity: { kind: 'group', size },
  scales: { dtype: 'f16', block: [1, size], global: false },
});
const twoLevel: Partial<PackedModule> = {
  granularity: { kind: 'group', size: 128 },
  scales: { dtype: 'f16', block: [1, 128], global: false, twoLevel: true },
};
const channel: Partial<PackedModule> = {
  granularity: { kind: 'channel' },
  scales: { dtype: 'f16', block: [1, 256], global: false },
};
const scales = (dtype: PackedModule['scales']['dtype']): Partial<PackedModule> => ({
  scales: { dtype, block: [1, 64], global: false },
});
const zeros = (value: PackedModule['zeros']): Partial<PackedModule> => ({
  zeros: value,
  canonical: { codes: HASH, scales: HASH, ...(value.kind === 'const' ? {} : { zeros: HASH }) },
});
const canonical = (parts: Partial<PackedModule['canonical']>): Partial<PackedModule> => ({
  canonical: { codes: HASH, scales: HASH, ...parts },
});

const codes = (...bits: (4 | 8)[]): Partial<PackedModule> => ({
  ...group(128),
  activations: { block: 128, bits, clip: bits.map(() => 1) },
});

const CONTRADICTIONS: readonly [string, Partial<PackedModule>, RegExp][] = [
  ['tilus', { padded: [128, 256] }, /smaller than/],
  ['tilus', { padded: [256, 320] }, /K % 128 = 0/],
  ['tilus', group(16), /no groups of 16/],
  ['tilus', scales('f32'), /no f32 scales/],
  ['tilus', zeros({ kind: 'float', dtype: 'f32' }), /f16 zero points only/],
  ['tilus', canonical({ mask: HASH }), /no 2:4 mask/],
  ['sparse_marlin', {}, /needs a 2:4 mask/],
  ['sparse_marlin', { ...group(64), ...canonical({ mask: HASH }) }, /no groups of 64/],
  ['sparse_marlin', { ...group(128), ...canonical({ mask: HASH, g_idx: HASH }) }, /no order of columns/],
  ['sparse_marlin', { ...group(128), ...canonical({ mask: HASH }), padded: [128, 256] }, /smaller than/],
  [
    'sparse_marlin',
    { ...group(128), ...zeros({ kind: 'int', dtype: 'u8' }), ...canonical({ mask: HASH, zeros: HASH }), type: 'u4' },
    /no zero points/,
  ],
  ['tilus', { scales: { dtype: 'f16', block: [2, 64], global: false } }, /several rows share/],
  ['tilus', canonical({ g_idx: HASH, permutation: HASH }), /one order of columns/],
  ['tilus', { ranks: { count: 3, split: 'n' } }, /3 ranks cannot share its 256/],
  ['tilus', { ranks: { count: 8, split: 'k' } }, /8 ranks cannot share its 256/],
  ['tilus', { ...canonical({ g_idx: HASH }), ranks: { count: 2, split: 'k' } }, /features that are reordered/],
  ['gptq', { ranks: { count: 2, split: 'n' } }, /no tensors for each rank/],
  ['marlin', { type: 'i5' }, /no 5-bit codes/],
  ['marlin', { type: 'f4e2m1' }, /holds integers/],
  ['marlin', scales('bf16'), /f16 scales only/],
  ['marlin', zeros({ kind: 'float', dtype: 'f16' }), /no float zero points/],
  ['marlin', zeros({ kind: 'const', value: 9 }), /outside the stored range/],
  [
    'marlin',
    {
      ...channel,
      ...zeros({ kind: 'int', dtype: 'u8' }),
      type: 'u4',
      shape: [256, 200],
      scales: { dtype: 'f16', block: [1, 200], global: false },
    },
    /pads K of whole channels only/,
  ],
  ['turbomind', channel, /no groups of whole rows/],
  ['turbomind', canonical({ permutation: HASH }), /no order of columns/],
  ['turbomind', { type: 'f6e3m2' }, /no f6e3m2 codes/],
  ['turbomind', { type: 'f4e2m1' }, /f8_e8m0 scales for f4e2m1/],
  ['turbomind_sm70', { padded: [272, 256] }, /N % 64 = 0/],
  ['comet', { ...codes(4, 8), type: 'i5' }, /no i5 codes/],
  ['comet', { ...codes(4, 8), padded: [272, 256] }, /pads N to a multiple of 16/],
  ['comet', { ...codes(4, 8), ...group(64) }, /only groups of 128/],
  ['comet', codes(4), /1 blocks of activations are not K \/ 128 = 2/],
  ['comet', group(128), /needs the precisions/],
  ['comet_two_level', codes(4, 8), /layout comet_two_level has scales of two levels/],
  ['comet_two_level', { ...twoLevel, type: 'i8' }, /layout comet_two_level has no i8 codes/],
  ['w4a8', group(128), /has scales of two levels/],
  ['w4a8', { ...twoLevel, type: 'i8' }, /no i8 codes/],
  ['w4a8', { ...twoLevel, padded: [272, 256] }, /pads N to a multiple of 16/],
  ['w4a8', { ...twoLevel, ...canonical({ permutation: HASH }) }, /no order of columns/],
  ['comet', { ...codes(4, 8), ...canonical({ g_idx: HASH }) }, /no g_idx/],
  ['tilus', codes(4, 8), /activations of 16 bits/],
];

test('contradictions of a manifest with its layouts of tiles are told', () => {
  for (const layout of ['marlin', 'turbomind', 'turbomind_sm70', 'tilus'])
    assert.deepEqual(expectation('m', entry(layout)).problems, [], layout);
  assert.deepEqual(expectation('m', entry('comet', codes(4, 8))).problems, []);
  for (const [layout, change, what] of CONTRADICTIONS) {
    const { problems } = expectation('m', entry(layout, change));
    assert.ok(
      problems.some((problem) => what.test(problem)),
      `${layout} ${what}: ${JSON.stringify(problems)}`,
    );
  }
});
