import { quantType } from '../../core/quant-type.js';
import { tilusKernel } from '../../model/kernels/tilus.js';
import { tileLayout } from '../decode-tiles.js';
import { orderTensor, partGroups, type TileRules } from '../tile-rules.js';

/** lpq's own: bit patterns as they are, of any type. */
const rules: TileRules = {
  name: 'tilus',
  steps: [32, 128],
  codes: 'packed',
  rows: true,
  form: () => 'tilus',

  scales(module) {
    const { zeros } = module;
    const dtype = zeros.kind === 'int' && zeros.dtype === 'u8' ? 'U8' : 'F16';
    return {
      ...{ name: 'scales', form: 'tilus', dtype: module.scales.dtype === 'f16' ? 'F16' : 'BF16' },
      groups: partGroups(module),
      padded: partGroups(module),
      ...((zeros.kind === 'int' || zeros.kind === 'float') && { zeros: { name: 'zeros', form: 'tilus', dtype } }),
    };
  },

  tensors(module) {
    const [np, kp] = module.padded;
    const { groups, dtype, zeros } = rules.scales(module);
    const shape = [np / 32, groups, 32];
    return [
      { suffix: 'packed', dtypes: ['U8'], shape: [np / 32, kp / 128, 512 * quantType(module.type).bits] },
      { suffix: 'scales', dtypes: [dtype], shape },
      ...(zeros ? [{ suffix: 'zeros', dtypes: [zeros.dtype], shape }] : []),
      ...orderTensor(module),
    ];
  },

  *problems({ scales, zeros }) {
    if (!['f16', 'bf16', 'f8_e8m0'].includes(scales.dtype)) yield `layout tilus has no ${scales.dtype} scales`;
    if (zeros.kind === 'float' && zeros.dtype !== 'f16') yield 'layout tilus has f16 zero points only';
  },

  emulator: () => ({ program: 'tilus' }),

  kernel: { binds: tilusKernel, roundsOnDevices: true },
};

export const tilus = tileLayout(rules);
