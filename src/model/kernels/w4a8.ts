import type { Tensor } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { below, beside, oneAfterAnother } from './join.js';
import { common, type PackedKernel, type PackedWeight } from './kernel.js';
import { takeCodes } from './token-codes.js';

/** W4A8: weights U8 [N'/16, K/128, 1024], scales f32 [N] of rows; activations become int8, one scale per token. */
export interface W4a8Weight extends PackedWeight {
  /** I8 [K/128, N']: whole multiples, -15 to 16, of groups; beyond N anything. */
  readonly groups: Tensor;
}

/** ops.quantizeTokens and ops.gemmAct. */
export const w4a8Kernel: PackedKernel<W4a8Weight> = {
  name: 'w4a8',
  tensors: ['weights', 'scales', 'groups'],
  wide: true,
  codes: () => 'i8',

  bind(binding) {
    const { load, codes } = binding;
    if (!codes) return undefined;
    return {
      kernel: w4a8Kernel,
      ...common(binding),
      weights: load('packed'),
      scales: load('channel_scales'),
      groups: load('group_scales'),
    };
  },

  /** x f32, f16 or bf16 becomes codes. Throws LPQ_NATIVE_NUMERICS, late, for NaN and infinity in x. */
  multiply(rt, x, packed, bias, y) {
    const read = takeCodes(rt, x, 'i8');
    try {
      const w = { codes: packed.weights, scales: packed.scales, groups: packed.groups };
      ops.gemmAct(rt, read, w, bias, y);
    } finally {
      for (const tensor of [read.codes, read.scales]) tensor.dispose();
    }
  },

  joining: {
    tile: 16,
    rows: ({ weights }) => 16 * weights.shape[0]!,
    readAlike: () => true,
    join: (rt, parts, shape) => ({
      ...parts[0]!,
      shape,
      weights: below(
        rt,
        parts.map(({ weights }) => weights),
      ),
      scales: oneAfterAnother(
        rt,
        parts.map(({ scales }) => scales),
        [shape[0]],
      ),
      groups: beside(
        rt,
        parts.map(({ groups }) => groups),
      ),
    }),
  },
};
