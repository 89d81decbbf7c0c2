import type { CanonicalModule } from '../../../formats/canonical/schema.js';
import type { Tensor } from '../../../native/binding.js';
import { groupCount } from '../../core/granularity.js';
import { allPacked, pack } from '../../layout/engine.js';
import { MMA_M16N8K16, reorderLocals, storedTile, WORD_3120, WORD_75316420 } from '../../layout/fragment.js';
import type { Layout } from '../../layout/layout.js';
import { local } from '../../layout/make.js';
import { type MemoryLayout, memoryLayout, repeatTile } from '../../layout/memory.js';
import { permute, product } from '../../layout/product.js';
import { hasForm, type IntegerForm, integerForm, type NoForm, noForm } from '../integer-form.js';
import { allocateFit, type Fit, type Operands, type PackLayout, paddingNote, roundUp } from '../layout.js';
import { columnOrder, offsetZeros, reorderProblem } from '../operands.js';
import type { ModuleFacts } from '../target.js';

/** Tile sizes that MARLIN's own kernel asks of K and N; newer ports accept less, and these too. */
const STEP_K = 128;
const STEP_N = 256;
/** Groups that today's ports read; the original has 128 only. */
const GROUPS: readonly number[] = [32, 64, 128];

const form = (module: CanonicalModule, facts: ModuleFacts) => integerForm(module, facts, { permuted: true });

/**
 * MARLIN: MODULE.B I32 [K/16, N * bits / 2] of unsigned codes, MODULE.s F16 [G, N], or [1, N] per channel (MARLIN, section
 * 3.4); MODULE.zp I32 [G, N * bits / 32] where there are zero points, and MODULE.permutation I32 [K] where columns are in
 * activation order: stored row j of K is input feature permutation[j]. K and N are padded to multiples of 128 and 256 with the
 * zero point as code and scale +0: the padding decodes to exactly 0 whatever the activations there. A kernel is run with A
 * padded by K, and columns of C beyond N ignored.
 */
export const marlinLayout: PackLayout = {
  name: 'marlin',

  fit(_name, module, facts): Fit | NoForm {
    const integer = form(module, facts);
    if (!hasForm(integer)) return integer;
    const { bits, symmetric } = integer;
    if (bits !== 4 && bits !== 8)
      return noForm(`it has ${bits}-bit codes, and MARLIN takes 4 or 8 bits`, 'Quantize it with --bits 4.');
    if (module.scales.dtype !== 'f16')
      return noForm(`its scales are ${module.scales.dtype}, and MARLIN reads f16`, 'Quantize it with f16 scales.');
    const reordered = reorderProblem(module, facts);
    if (reordered) return reordered;
    const [n, k] = module.shape;
    const { granularity } = module;
    if (granularity.kind === 'group' && !GROUPS.includes(granularity.size))
      return noForm(
        `its groups have ${granularity.size} weights, and MARLIN reads groups of ${GROUPS.join(', ')} or whole rows`,
        'Quantize it with --group-size 128 or channel.',
      );
    const padded = [roundUp(n, STEP_N), roundUp(k, STEP_K)] as const;
    if (!symmetric && granularity.kind === 'channel' && padded[1] !== k)
      return noForm(
        `its K = ${k} is not a multiple of ${STEP_K}, and padding cannot hold a zero point for each row`,
        'Quantize it with --sym or in groups.',
      );
    const groups = groupCount(granularity, granularity.kind === 'channel' ? k : padded[1]);
    const notes = paddingNote(
      module.shape,
      padded,
      symmetric ? `code ${2 ** (bits - 1)} and scale 0, which decode to 0` : 'code, zero point and scale 0',
    );
    // The kernel knows a single row of scales as per channel, whatever made it single.
    if (groups === 1 && granularity.kind === 'group')
      notes.push(`Its one group of ${k} spans the row, so the scales are in the order of per-channel ones.`);
    if (module.groupIndex)
      notes.push(
        'Its input features are sorted by group (permutation); a kernel gathers the activations in the same order.',
      );
    return {
      padded,
      tensors: [
        { suffix: 'B', dtype: 'I32', shape: [padded[1] / 16, (padded[0] * bits) / 2] },
        { suffix: 's', dtype: 'F16', shape: [groups, padded[0]] },
        ...(symmetric ? [] : [{ suffix: 'zp', dtype: 'I32' as const, shape: [groups, (padded[0] * bits) / 32] }]),
        ...(module.groupIndex || module.permutation
          ? [{ suffix: 'permutation', dtype: 'I32' as const, shape: [k] }]
          : []),
      ],
      notes,
    };
  },

  async pack(operands: Operands, fit: Fit): Promise<Map<string, Tensor>> {
    const { rt, module, codes, scales } = operands;
    const { bits, bias, symmetric } = form(module, { zeroRange: [0, 0] }) as IntegerForm;
    const [n, k] = fit.padded;
    const out = allocateFit(fit, 'permutation');
    const width = bits as 4 | 8;
    const order = operands.groupIndex && columnOrder(operands.groupIndex);
    pack(rt, marlinWeight(n, k, width), codes, out.get('B')!, {
      streamColumns: module.shape[1],
      bias,
      pad: symmetric ? 2 ** (bits - 1) : 0,
      ...(order && { order }),
    });
    const groups = out.get('s')!.shape[0]!;
    pack(rt, marlinScales(n, groups, groups === 1), scales, out.get('s')!);
    if (!symmetric) {
      const zeros = offsetZeros(operands, form(module, { zeroRange: [0, 0] }) as IntegerForm);
      pack(rt, marlinZeros(n, groups, width), zeros, out.get('zp')!);
      zeros.dispose();
    }
    await allPacked(rt);
    const permutation = order ?? operands.permutation;
    if (permutation) out.set('permutation', permutation.view(permutation.shape));
    order?.dispose();
    return out;
  },

  memory: { bits: [4, 8], unit: [64, 16], of: (n, k, bits) => marlinWeight(n, k, bits as 4 | 8) },
};

/**
 * What a warp of the MARLIN kernel holds of B: four 16x16 tiles side by side, [k, n] = [16, 64]; lane L's elements
 * 8j + v are the eight codes of its fragment in n-subtile j (MARLIN, section 3.4).
 */
export const MARLIN_WARP_TILE: Layout = product(local(1, 4), local(1, 2), MMA_M16N8K16.b);

/** The warp tile as stored: v0 .. v7 of each word in the order that one mask splits into half2 pairs. */
export const MARLIN_STORED_TILE: Layout = reorderLocals(MARLIN_WARP_TILE, WORD_75316420);

/** The same for 8-bit codes: the four of a word are one B fragment's, v0 v2 v1 v3 from the lowest byte. */
export const MARLIN_STORED_TILE_8: Layout = reorderLocals(MARLIN_WARP_TILE, WORD_3120);

/** `B` I32 [K/16, N * bits / 2] of unsigned codes: warp tiles along n, then along k. K % 16 == 0, N % 64 == 0. */
export function marlinWeight(n: number, k: number, bits: 4 | 8 = 4): MemoryLayout {
  const tile = storedTile(permute(bits === 4 ? MARLIN_STORED_TILE : MARLIN_STORED_TILE_8, [1, 0]), bits);
  const across = n / 64;
  return memoryLayout({
    bits,
    ...repeatTile(tile, [across, k / 16], [tile.bits, across * tile.bits]),
    bytes: (n * k * bits) / 8,
  });
}

/**
 * Zero points I32 [G, N * bits / 32] of unsigned codes, from zeros [N, G]: in each 64 columns the order of grouped scales,
 * and the codes of a word in the order of the weights (0 2 4 6 1 3 5 7; 0 2 1 3 for 8 bits). So column n of 64 is in
 * nibble [0 4 1 5 2 6 3 7][n / 8] of word n % 8.
 */
export function marlinZeros(n: number, groups: number, bits: 4 | 8): MemoryLayout {
  const inWord =
    bits === 4
      ? [
          { size: 4, stride: 4 },
          { size: 2, stride: 16 },
        ]
      : [
          { size: 2, stride: 32 },
          { size: 2, stride: 8 },
          { size: 2, stride: 16 },
        ];
  return memoryLayout({
    bits,
    rows: [{ size: n / 64, stride: 64 * bits }, ...inWord, { size: 8, stride: 8 * bits }],
    columns: [{ size: groups, stride: n * bits }],
    bytes: (n * groups * bits) / 8,
  });
}

/**
 * `s` F16 [G, N] from scales [N, G]: in each 64 columns, position p holds column p / 8 + 8 (p % 8), so that a lane reads
 * the eight columns of its fragments, 8 apart, in one load. Per channel (G = 1), in each 32 columns position p holds
 * column 2 (p / 8) + 8 ((p % 8) / 2) + p % 2: the column pairs of a lane's accumulators, which is where they apply.
 */
export function marlinScales(n: number, groups: number, perChannel: boolean): MemoryLayout {
  const rows = perChannel
    ? [
        { size: n / 32, stride: 32 * 16 },
        { size: 4, stride: 2 * 16 },
        { size: 4, stride: 8 * 16 },
        { size: 2, stride: 16 },
      ]
    : [
        { size: n / 64, stride: 64 * 16 },
        { size: 8, stride: 16 },
        { size: 8, stride: 8 * 16 },
      ];
  return memoryLayout({ bits: 16, rows, columns: [{ size: groups, stride: n * 16 }], bytes: n * groups * 2 });
}
