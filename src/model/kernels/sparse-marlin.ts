import type { Tensor } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { common, type PackedKernel, type PackedWeight } from './kernel.js';

interface SparseMarlinWeight extends PackedWeight {
  /** I16 [K/32, 2N]: where the weights that stay stood. */
  readonly metadata: Tensor;
}

/** ops.gemmSparseMarlin. */
export const sparseMarlinKernel: PackedKernel<SparseMarlinWeight> = {
  name: 'sparse_marlin',
  tensors: ['weights', 'scales', 'metadata'],

  bind(binding) {
    const { load } = binding;
    return {
      kernel: sparseMarlinKernel,
      ...common(binding),
      weights: load('B'),
      metadata: load('meta'),
      scales: load('s'),
    };
  },

  multiply: (rt, x, packed, bias, y) =>
    ops.gemmSparseMarlin(rt, x, packed, bias, y, {
      bits: packed.type.bits as number,
      groupSize: packed.groupSize,
    }),
};
