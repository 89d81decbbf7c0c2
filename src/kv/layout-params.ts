import type { OpParams } from '../../native/binding.js';
import { layoutParams } from '../layout/engine.js';
import type { KvPage, KvSide } from './page.js';

/** The parameters of ops.kvAttention (keys..., values...) or, of one side, of ops.kvUnpack (side...). */
export function pageParams(page: KvPage): OpParams {
  return { ...sideParams(page.keys, 'keys'), ...sideParams(page.values, 'values') };
}

export function sideParams(side: KvSide, name: 'keys' | 'values' | 'side' = 'side'): OpParams {
  const of = (part: 'Codes' | 'Scales' | 'Zeros', layout: KvSide['codes']['layout']): OpParams => {
    const { bits, modeDims, modeSizes, modeStrides, base } = layoutParams(layout, {});
    const prefix = `${name}${part}`;
    return {
      [`${prefix}Bits`]: bits,
      [`${prefix}Dims`]: modeDims,
      [`${prefix}Sizes`]: modeSizes,
      [`${prefix}Strides`]: modeStrides,
      [`${prefix}Base`]: base,
    };
  };
  return {
    ...of('Codes', side.codes.layout),
    ...of('Scales', side.scales.layout),
    ...of('Zeros', side.zeros.layout),
  };
}
