import type { PackedModule } from '../../../formats/artifact/schema.js';
import { allocate, fromTyped, type Tensor, typed } from '../../../native/binding.js';
import { w4a8Kernel } from '../../model/kernels/w4a8.js';
import { wideScales } from '../decode-comet.js';
import { firstWrong, problem, storedScales } from '../decode-scales.js';
import { tileLayout } from '../decode-tiles.js';
import type { LayoutTensor } from '../layout.js';
import { emulate } from '../native.js';
import { partGroups, partShape, type TilePart, type TileRules } from '../tile-rules.js';

/** Two-level grids: codes of 4 bits, whole multiples of groups, scales of rows. */
const rules: TileRules = {
  name: 'w4a8',
  steps: [16, 128],
  codes: 'packed',
  rows: false,
  form: () => 'comet',

  scales(module) {
    const groups = partGroups(module);
    return { name: 'group_scales', form: 'comet', dtype: 'I8', groups, padded: groups };
  },

  tensors(module) {
    return twoLevelTensors(module);
  },

  *problems(module) {
    const { canonical, granularity, scales, type, zeros } = module;
    const [n, k] = partShape(module);
    if (type !== 'i4') yield `layout w4a8 has no ${type} codes`;
    if (zeros.kind !== 'none') yield 'layout w4a8 has no zero points';
    if (granularity.kind !== 'group' || granularity.size !== 128) yield 'layout w4a8 has only groups of 128';
    if (!scales.twoLevel) yield 'layout w4a8 has scales of two levels';
    if (scales.dtype !== 'f16' && scales.dtype !== 'f32') yield `layout w4a8 has no ${scales.dtype} scales`;
    if (canonical.g_idx !== undefined || canonical.permutation !== undefined)
      yield 'layout w4a8 has no order of columns';
    if (module.padded[1] !== k || module.padded[0] >= n + 16)
      yield 'layout w4a8 pads N to a multiple of 16, and does not pad K';
  },

  async takeScales(part, read, parts) {
    const products = twoLevelProducts(part, typed<Int8Array>(read.scales.output));
    read.scales.output.dispose();
    parts.set('scales', await storedScales(part.rt, read.name, part.module, part.decoded, products));
  },

  /** The lanes' words as layout comet has them, with activations of 8 bits in every block: integer sums must be exact. */
  emulator: {
    strip: () => 16,
    async run({ runtime, weights, seed }, { prefix, module, parts, strips }) {
      const wide = await wideScales(runtime, parts.get('scales')!);
      const blocks = partGroups(module);
      const inputs = [
        weights.tensor(`${prefix}.packed`),
        turned(typed<Float32Array>(wide), blocks, module.padded[0]),
        fromTyped('u8', [blocks], new Uint8Array(blocks).fill(8)),
        fromTyped('f32', [blocks], new Float32Array(blocks).fill(1)),
        fromTyped(
          'i32',
          [blocks],
          Int32Array.from({ length: blocks }, (_, i) => i),
        ),
      ];
      const result = await emulate(runtime, 'comet', [...inputs, parts.get('codes')!, wide], { seed, strips });
      for (const tensor of [...inputs, wide]) tensor.dispose();
      return result;
    },
    wrong: ({ row, column, got, expected, count }) =>
      `the emulated kernel's sum of the block of row ${row} at column ${column} is ${got}, not ${expected} (${count} such sums)`,
  },

  kernel: { binds: w4a8Kernel, codes: 'i8' },
};

export const w4a8 = tileLayout(rules);

export function twoLevelTensors(module: PackedModule): LayoutTensor[] {
  const [np, kp] = module.padded;
  const blocks = kp / 128;
  return [
    { suffix: 'packed', dtypes: ['U8'], shape: [np / 16, blocks, 1024] },
    { suffix: 'group_scales', dtypes: ['I8'], shape: [blocks, np] },
    { suffix: 'channel_scales', dtypes: ['F32'], shape: [partShape(module)[0]] },
  ];
}

/**
 * The scales f32 [N, G] that a row's scale and the multiples i8 [N, G] stand for. Multiples must keep codes within int8, and have no
 * divisor in common: there is one such form of a row.
 */
export function twoLevelProducts({ weights, prefix, module, decoded }: TilePart, multiples: Int8Array): Tensor {
  const [n] = partShape(module);
  const groups = partGroups(module);
  const name = `${prefix}.group_scales`;
  const range = firstWrong(
    multiples,
    groups,
    () => 1,
    (value) => value >= -15 && value <= 16 && value !== 0,
  );
  problem(decoded, name, 'a multiple is not from -15 to 16, or 0', range);
  const divisors = Array.from({ length: n }, (_, row) =>
    multiples.subarray(row * groups, (row + 1) * groups).reduce((found, value) => divisor(found, Math.abs(value)), 0),
  );
  problem(
    decoded,
    name,
    'the multiples of a row have a common divisor',
    firstWrong(divisors, 1, () => 1),
  );
  const stored = weights.tensor(`${prefix}.channel_scales`);
  const rows = typed<Float32Array>(stored);
  const positive = firstWrong(
    rows,
    1,
    () => 1,
    (value) => value > 0 && Number.isFinite(value),
  );
  problem(decoded, `${prefix}.channel_scales`, 'the scale of a row is not positive', positive);
  const products = Array.from(multiples, (value, i) => value * rows[Math.floor(i / groups)]!);
  const inexact = firstWrong(products, groups, (i) => Math.fround(products[i]!));
  problem(decoded, name, 'a product with the scale of the row is no f32 number', inexact);
  stored.dispose();
  return fromTyped('f32', [n, groups], Float32Array.from(products));
}

function divisor(a: number, b: number): number {
  return b === 0 ? a : divisor(b, a % b);
}

/** [N, G] as [G, np], 0 behind N. */
export function turned(scales: Float32Array, groups: number, np: number): Tensor {
  const tensor = allocate('f32', [groups, np]);
  const to = typed<Float32Array>(tensor).fill(0);
  for (const [i, scale] of scales.entries()) to[(i % groups) * np + Math.floor(i / groups)] = scale;
  return tensor;
}
