import type { Tensor } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { quantType } from '../../core/quant-type.js';
import { beside } from './join.js';
import { common, type PackedKernel, type PackedWeight } from './kernel.js';

interface TurbomindWeight extends PackedWeight {
  /** Tiles run along K first. */
  readonly experts: boolean;
}

/** ops.gemmTurbomind: devices of 7.5 and later. */
export const turbomindKernel: PackedKernel<TurbomindWeight> = {
  name: 'turbomind',
  tensors: ['weights', 'scales'],

  bind(binding) {
    const { name, module, has, load } = binding;
    return {
      kernel: turbomindKernel,
      ...common(binding),
      experts: quantType(module.type).kind === 'int' && /(^|\.)experts\.\d+\./.test(name),
      weights: load('packed'),
      scales: load(has('scales_zeros') ? 'scales_zeros' : 'scales'),
    };
  },

  multiply: (rt, x, packed, bias, y) =>
    ops.gemmTurbomind(rt, x, packed, bias, y, packed.type, {
      groupSize: packed.groupSize,
      experts: packed.experts,
    }),

  joining: {
    tile: 64,
    rows: ({ scales }) => scales.shape[1]!,
    readAlike: (_, [first]) => !first!.experts && first!.shape[1] % 16 === 0,
    join(rt, parts, shape) {
      const [n, k] = shape;
      const all = (of: (part: TurbomindWeight) => Tensor) => parts.map(of);
      // Sixteens of input features one after another: [K/16, 16 N bits / 32].
      const weights = all((part) => part.weights);
      const whole = beside(rt, weights, k / 16);
      const flat = whole.view([weights.reduce((sum, tensor) => sum + tensor.shape[0]!, 0)]);
      whole.dispose();
      const [groups, , ...pair] = parts[0]!.scales.shape as [number, number, ...number[]];
      const together = beside(
        rt,
        all(({ scales }) => scales),
        groups,
      );
      const shaped = together.view([groups, n, ...pair]);
      together.dispose();
      return { ...parts[0]!, shape, weights: flat, scales: shaped };
    },
  },
};
