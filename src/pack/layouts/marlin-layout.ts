import type { CanonicalModule } from '../../../formats/canonical/schema.js';
import { allocate, type Tensor } from '../../../native/binding.js';
import { groupCount } from '../../core/granularity.js';
import { allPacked, pack } from '../../layout/engine.js';
import { hasForm, type IntegerForm, integerForm, type NoForm } from '../integer-form.js';
import { columnOrder, offsetZeros } from '../operands.js';
import type { ModuleFacts } from '../target.js';
import { type Operands, paddingNote, roundUp, type TileFit, type TileLayout } from '../tile-layout.js';
import { marlinScales, marlinWeight, marlinZeros } from './marlin.js';

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
export const marlinLayout: TileLayout = {
  name: 'marlin',

  fit(_name, module, facts): TileFit | NoForm {
    const no = (reason: string, remedy: string): NoForm => ({ reason, remedy });
    const integer = form(module, facts);
    if (!hasForm(integer)) return integer;
    const { bits, symmetric } = integer;
    if (bits !== 4 && bits !== 8)
      return no(`it has ${bits}-bit codes and MARLIN 4- or 8-bit ones`, 'Quantize it with --bits 4.');
    if (module.scales.dtype !== 'f16')
      return no(`its scales are ${module.scales.dtype} and MARLIN reads f16`, 'Quantize it with f16 scales.');
    const reordered = reorderProblem(module, facts);
    if (reordered) return reordered;
    const [n, k] = module.shape;
    const { granularity } = module;
    if (granularity.kind === 'group' && !GROUPS.includes(granularity.size))
      return no(
        `its groups are ${granularity.size} long and MARLIN reads groups of ${GROUPS.join(', ')} or whole rows`,
        'Quantize it with --group-size 128 or channel.',
      );
    const padded = [roundUp(n, STEP_N), roundUp(k, STEP_K)] as const;
    if (!symmetric && granularity.kind === 'channel' && padded[1] !== k)
      return no(
        `its K = ${k} is no multiple of ${STEP_K}, and a row's own zero point cannot stand in the padding`,
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
      notes.push('Its input features are sorted by group (permutation); a kernel gathers the activations alike.');
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

  async pack(operands: Operands, fit: TileFit): Promise<Map<string, Tensor>> {
    const { rt, module, codes, scales } = operands;
    const { bits, bias, symmetric } = form(module, { zeroRange: [0, 0] }) as IntegerForm;
    const [n, k] = fit.padded;
    const out = new Map<string, Tensor>();
    for (const { suffix, dtype, shape } of fit.tensors)
      if (suffix !== 'permutation') out.set(suffix, allocate(dtype === 'F16' ? 'f16' : 'i32', shape));
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
};

/** Whether columns that are not in place can be named by one permutation whose groups are runs. */
export function reorderProblem(module: CanonicalModule, facts: ModuleFacts): NoForm | undefined {
  if (module.groupIndex && module.permutation)
    return {
      reason: 'its columns are permuted and its groups are named besides',
      remedy: 'Quantize it with --order static, which keeps them in place.',
    };
  if (module.groupIndex && facts.evenGroups === false)
    return {
      reason: 'its groups (g_idx) have different numbers of input features',
      remedy: 'Quantize it with --order static, which keeps groups of one size.',
    };
  return undefined;
}
