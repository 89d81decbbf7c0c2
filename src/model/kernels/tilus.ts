import type { Tensor } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { below } from './join.js';
import { common, type PackedKernel, type PackedWeight } from './kernel.js';

export interface TilusWeight extends PackedWeight {
  /** Of grids without zero points. */
  readonly zero: number;
  readonly zeros?: Tensor;
}

/** ops.gemmPacked, and ops.gemmExperts: lpq's own layout, with its columns in place. */
export const tilusKernel: PackedKernel<TilusWeight> = {
  name: 'tilus',
  tensors: ['weights', 'scales', 'zeros'],

  bind(binding) {
    const { module, has, load } = binding;
    if (has('permutation')) return undefined;
    return {
      kernel: tilusKernel,
      ...common(binding),
      zero: module.zeros.kind === 'const' ? module.zeros.value : 0,
      weights: load('packed'),
      scales: load('scales'),
      ...(has('zeros') && { zeros: load('zeros') }),
    };
  },

  multiply: (rt, x, packed, bias, y) =>
    ops.gemmPacked(rt, x, packed, bias, y, packed.type, { groupSize: packed.groupSize, zero: packed.zero }),

  multiplyExperts: (rt, x, offsets, packed, bias, y, gating) =>
    ops.gemmExperts(rt, x, offsets, packed, bias, y, packed.type, {
      groupSize: packed.groupSize,
      zero: packed.zero,
      ...gating,
    }),

  interleave(rt, packed) {
    const apart = (x: Tensor, of: 'words' | 'sides') => {
      const y = rt.allocate(x.dtype, x.shape);
      ops.interleaveGates(rt, x, y, of === 'words' ? { of, bits: packed.type.bits as number } : { of });
      x.dispose();
      return y;
    };
    return {
      ...packed,
      weights: apart(packed.weights, 'words'),
      scales: apart(packed.scales, 'sides'),
      ...(packed.zeros && { zeros: apart(packed.zeros, 'sides') }),
    };
  },

  joining: {
    tile: 32,
    rows: ({ weights }) => 32 * weights.shape[0]!,
    readAlike: () => true,
    join(rt, parts, shape) {
      const down = (of: (part: TilusWeight) => Tensor) => below(rt, parts.map(of));
      return {
        ...parts[0]!,
        shape,
        weights: down(({ weights }) => weights),
        scales: down(({ scales }) => scales),
        ...(parts[0]!.zeros && { zeros: down(({ zeros }) => zeros!) }),
      };
    },
  },
};
