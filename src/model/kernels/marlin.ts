import type { Tensor } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { beside } from './join.js';
import { common, type PackedKernel, type PackedWeight } from './kernel.js';

interface MarlinWeight extends PackedWeight {
  readonly zeros?: Tensor;
  /** I32 [K]: the input feature of each stored row. */
  readonly permutation?: Tensor;
}

/** ops.gemmMarlin. */
export const marlinKernel: PackedKernel<MarlinWeight> = {
  name: 'marlin',
  tensors: ['weights', 'scales', 'zeros', 'permutation'],

  bind(binding) {
    const { has, load } = binding;
    return {
      kernel: marlinKernel,
      ...common(binding),
      weights: load('B'),
      scales: load('s'),
      ...(has('zp') && { zeros: load('zp') }),
      ...(has('permutation') && { permutation: load('permutation') }),
    };
  },

  multiply: (rt, x, packed, bias, y) =>
    ops.gemmMarlin(rt, x, packed, bias, y, { bits: packed.type.bits as number, groupSize: packed.groupSize }),

  joining: {
    tile: 64,
    rows: ({ scales }) => scales.shape[1]!,
    readAlike: (_, parts) => parts.every(({ permutation }) => !permutation),
    join(rt, parts, shape) {
      const side = (of: (part: MarlinWeight) => Tensor) => beside(rt, parts.map(of));
      return {
        ...parts[0]!,
        shape,
        weights: side(({ weights }) => weights),
        scales: side(({ scales }) => scales),
        ...(parts[0]!.zeros && { zeros: side(({ zeros }) => zeros!) }),
      };
    },
  },
};
