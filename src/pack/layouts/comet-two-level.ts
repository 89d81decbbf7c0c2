import type { Tensor } from '../../../native/binding.js';
import { type NoForm, noForm } from '../integer-form.js';
import { type Fit, fits, type Operands, type PackLayout } from '../layout.js';
import { activationTensors, COMET_K, cometLayout } from './comet.js';
import { packTwoLevels } from './w4a8.js';

/**
 * W4Ax of a two-level grid: MODULE.packed, MODULE.group_scales and MODULE.channel_scales as in layout w4a8, and what layout comet says of the
 * activations: bits, clip, blocks, and permutation. N is padded with codes and multiples of 0.
 */
export const cometTwoLevelLayout: PackLayout = {
  name: 'comet_two_level',

  fit(name, module, facts): Fit | NoForm {
    if (!module.scales.twoLevel)
      return noForm(
        'the scales of its groups are not whole multiples of one a row',
        'Quantize it with --method fmpq --bits 4 --group-scales integer.',
      );
    const fit = cometLayout.fit(name, module, facts);
    if (!fits(fit)) return fit;
    const [n, k] = module.shape;
    return {
      ...fit,
      tensors: fit.tensors.flatMap((tensor) =>
        tensor.suffix === 'scales'
          ? [
              { suffix: 'group_scales', dtype: 'I8' as const, shape: [k / COMET_K, fit.padded[0]] },
              { suffix: 'channel_scales', dtype: 'F32' as const, shape: [n] },
            ]
          : [tensor],
      ),
      notes: fit.notes.map((note) => note.replace('codes and scales of 0', 'codes and multiples of 0')),
    };
  },

  async pack(operands: Operands, fit: Fit): Promise<Map<string, Tensor>> {
    const { module, permutation } = operands;
    return new Map([
      ...(await packTwoLevels(operands, fit)),
      ...activationTensors(module.activations!),
      ...(permutation ? [['permutation', permutation.view(permutation.shape)] as const] : []),
    ]);
  },

  memory: cometLayout.memory!,
};
