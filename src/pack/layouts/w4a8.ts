import { allocate, type Tensor, typed } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { LpqError } from '../../core/error.js';
import { allPacked, pack } from '../../layout/engine.js';
import { type NoForm, noForm } from '../integer-form.js';
import { type Fit, type Operands, type PackLayout, paddingNote, roundUp } from '../layout.js';
import { COMET_K, COMET_N, cometWeight } from './comet.js';

/** Multiples of a row's scale, times a code from -8 to 7, stay within int8. */
const [LEAST, MOST] = [-15, 16];

/**
 * Two-level grids for activations of int8 (docs/internals/layouts/comet.md): MODULE.packed U8 [N/16, K/128, 1024], codes as in layout comet,
 * MODULE.group_scales I8 [K/128, N], whole multiples, and MODULE.channel_scales F32 [N without padding]. N is padded with codes and multiples
 * of 0.
 */
export const w4a8Layout: PackLayout = {
  name: 'w4a8',

  fit(_name, module): Fit | NoForm {
    if (!module.scales.twoLevel)
      return noForm(
        'the scales of its groups are not whole multiples of one a row',
        'Quantize it with --bits 4 --group-scales integer.',
      );
    if (module.permutation || module.groupIndex)
      return noForm('its input features are reordered', 'Quantize it with --method gptq or rtn.');
    const [n, k] = module.shape;
    const padded = [roundUp(n, COMET_N), k] as const;
    const groups = k / COMET_K;
    return {
      padded,
      tensors: [
        { suffix: 'packed', dtype: 'U8', shape: [padded[0] / COMET_N, groups, 1024] },
        { suffix: 'group_scales', dtype: 'I8', shape: [groups, padded[0]] },
        { suffix: 'channel_scales', dtype: 'F32', shape: [n] },
      ],
      notes: paddingNote(module.shape, padded, 'codes and multiples of 0'),
    };
  },

  pack: packTwoLevels,

  memory: { bits: [4], unit: [COMET_N, COMET_K], of: cometWeight },
};

/** The tensors packed, group_scales and channel_scales of a two-level grid, the first three of `fit`. Throws LPQ_PACK. */
export async function packTwoLevels({ rt, name, codes, scales }: Operands, fit: Fit): Promise<Map<string, Tensor>> {
  const [packed, multiples, channel] = fit.tensors.map(({ shape }) => shape);
  const [n, k] = fit.padded;
  const out = new Map<string, Tensor>([
    ['packed', allocate('u8', packed!)],
    ['group_scales', allocate('i8', multiples!)],
    ['channel_scales', allocate('f32', channel!)],
  ]);
  pack(rt, cometWeight(n, k), codes, out.get('packed')!, { streamColumns: k });
  const wide = allocate('f32', scales.shape);
  ops.cast(rt, scales, wide);
  await allPacked(rt);
  factor(name, typed<Float32Array>(wide), {
    multiples: typed<Int8Array>(out.get('group_scales')!),
    rows: typed<Float32Array>(out.get('channel_scales')!),
  });
  wide.dispose();
  return out;
}

/** scales [N, G] as rows [N] times multiples [G, N']: the smallest ones that give each scale exactly. Throws LPQ_PACK. */
function factor(name: string, scales: Float32Array, to: { multiples: Int8Array; rows: Float32Array }): void {
  const n = to.rows.length;
  const groups = scales.length / n;
  const pitch = to.multiples.length / groups;
  to.multiples.fill(0);
  for (let row = 0; row < n; row++) {
    const own = scales.subarray(row * groups, (row + 1) * groups);
    const largest = own.reduce((most, scale) => Math.max(most, Math.abs(scale)), 0);
    let m = 1;
    while (m <= MOST && !own.every((scale) => isMultiple(scale, largest / m))) m++;
    if (m > MOST)
      throw new LpqError('LPQ_PACK', `the scales of ${name}, row ${row}, are not whole multiples of one number`, {
        got: `${[...own.subarray(0, 4)].join(', ')}${groups > 4 ? ', ...' : ''}`,
        expected: `multiples from ${LEAST} to ${MOST}, not 0`,
        hint: 'Quantize the model again with --group-scales integer.',
      });
    to.rows[row] = largest / m;
    for (const [g, scale] of own.entries()) to.multiples[g * pitch + row] = Math.round(scale / (largest / m));
  }
}

function isMultiple(scale: number, unit: number): boolean {
  const times = Math.round(scale / unit);
  return Math.fround(unit) === unit && times * unit === scale && times !== 0 && times >= LEAST && times <= MOST;
}
