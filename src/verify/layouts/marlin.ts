import type { PackedModule } from '../../../formats/artifact/schema.js';
import { quantType } from '../../core/quant-type.js';
import { marlinKernel } from '../../model/kernels/marlin.js';
import { tileLayout } from '../decode-tiles.js';
import { isSymmetric } from '../layout.js';
import { integerProblems, orderTensor, partGroups, partShape, type TileRules, tileCodes } from '../tile-rules.js';

const rules: TileRules = {
  name: 'marlin',
  steps: [256, 128],
  codes: 'B',
  unsigned: true,
  middle: true,
  rows: true,
  form: () => 'marlin',

  scales(module) {
    const { zero, bits } = tileCodes(rules, module);
    return {
      ...{ name: 's', form: 'marlin_scales', dtype: 'F16' },
      groups: partGroups(module),
      padded: partGroups(module, module.padded[1]),
      ...(zero !== 2 ** (bits - 1) && { zeros: { name: 'zp', form: 'marlin_zeros', dtype: 'I32' } }),
    };
  },

  tensors(module) {
    const [np, kp] = module.padded;
    const { bits } = quantType(module.type);
    const { padded, zeros } = rules.scales(module);
    return [
      { suffix: 'B', dtypes: ['I32'], shape: [kp / 16, (np * bits) / 2] },
      { suffix: 's', dtypes: ['F16'], shape: [padded, np] },
      ...(zeros ? [{ suffix: 'zp', dtypes: ['I32'], shape: [padded, (np * bits) / 32] }] : []),
      ...orderTensor(module),
    ];
  },

  *problems(module) {
    const type = quantType(module.type);
    if (type.kind === 'int') yield* integerProblems(rules, module);
    else yield `layout marlin holds integers, not ${type.name}`;
    const whole = module.padded[1] === partShape(module)[1];
    if (rules.scales(module).zeros && module.granularity.kind === 'channel' && !whole)
      yield 'layout marlin pads K of whole channels only if the zero point is the middle code';
  },

  emulator: (module) => ({ program: isClassic(module) ? 'marlin' : 'marlin_later' }),

  kernel: { binds: marlinKernel, rounds: true },
};

export const marlin = tileLayout(rules);

/** What MARLIN's own kernel reads: scales of whole channels are multiplied in after the sum. */
function isClassic(module: PackedModule): boolean {
  const { canonical, granularity, padded } = module;
  const whole = granularity.kind === 'channel' || padded[1] === partShape(module)[1];
  return quantType(module.type).bits === 4 && isSymmetric(module) && !canonical.g_idx && whole;
}
