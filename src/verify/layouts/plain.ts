import type { PackedModule } from '../../../formats/artifact/schema.js';
import type { ScaleDtype } from '../../../formats/canonical/schema.js';
import { quantType } from '../../core/quant-type.js';
import type { LayoutTensor, VerifiedLayout } from '../layout.js';
import { checkIndices } from '../streams.js';

/** How a module that a target does not take goes along: none of its codes, or all of it as it was quantized. */

const SCALE_STORAGE: Readonly<Record<ScaleDtype, string>> = {
  f16: 'F16',
  bf16: 'BF16',
  f32: 'F32',
  f8_e8m0: 'U8',
  f8_e4m3: 'F8_E4M3',
};
const ZERO_STORAGE = { u8: 'U8', i16: 'I16', f16: 'F16', f32: 'F32' } as const;

/** The dequantized weight, as the source stores it. */
export const dense: VerifiedLayout = {
  name: 'dense',
  problems: () => [],
  tensors: ({ shape, transposed }) => [
    { suffix: 'weight', dtypes: ['F32', 'F16', 'BF16'], shape: transposed ? [...shape].reverse() : shape },
  ],
  decode(_rt, weights, name, _module, decoded) {
    decoded.parts.set('weight', weights.tensor(`${name}.weight`));
  },
};

/** The tensors of the canonical checkpoint. */
export const carried: VerifiedLayout = {
  name: 'carried',
  activations: true,
  problems: () => [],

  tensors(module) {
    const [n, k] = module.shape;
    const [blockN, blockK] = module.scales.block;
    const { zeros, scales } = module;
    const perScale = [n / blockN, k / blockK];
    return [
      { suffix: 'codes', dtypes: ['U8'], shape: [n, Math.ceil((k * quantType(module.type).bits) / 8)] },
      { suffix: 'scales', dtypes: [SCALE_STORAGE[scales.dtype]], shape: perScale },
      ...(zeros.kind === 'int' || zeros.kind === 'float'
        ? [{ suffix: 'zeros', dtypes: [ZERO_STORAGE[zeros.dtype]], shape: perScale }]
        : []),
      ...(scales.global ? [{ suffix: 'global_scale', dtypes: ['F32'], shape: [1] }] : []),
      ...extra(module),
    ];
  },

  decode(_rt, weights, name, module, decoded) {
    for (const part of ['codes', 'scales', 'zeros', 'global_scale', 'g_idx', 'permutation', 'mask'] as const)
      if (module.canonical[part] !== undefined)
        decoded.parts.set(part, weights.tensor(`${name}.${part}`, part === 'scales' ? module.scales.dtype : undefined));
    const group = decoded.parts.get('g_idx');
    if (group) decoded.group = group;
    checkIndices(name, 'g_idx', module, decoded);
  },
};

function extra(module: PackedModule): LayoutTensor[] {
  const [n, k] = module.shape;
  return (['g_idx', 'permutation', 'mask'] as const)
    .filter((part) => module.canonical[part] !== undefined)
    .map((part) => ({
      suffix: part,
      dtypes: [part === 'mask' ? 'U8' : 'I32'],
      shape: part === 'mask' ? [n, Math.ceil(k / 8)] : [k],
    }));
}
