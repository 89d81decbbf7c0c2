import type { Tensor } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { below } from './join.js';
import { common, type PackedKernel } from './kernel.js';
import { takeCodes } from './token-codes.js';

/** ops.gemmAct: weights I8 or F8_E4M3 [N,K], scales f16, bf16 or f32 [N,1]; activations become codes of that dtype, one scale per token. */
export const w8a8Kernel: PackedKernel = {
  name: 'w8a8',
  tensors: ['weights', 'scales'],
  codes: ({ weights }) => weights.dtype,

  bind(binding) {
    const { module, load, codes } = binding;
    // Bytes with one scale per row; copies by TMA want rows of whole sixteens.
    if (!codes || module.granularity.kind !== 'channel' || module.scales.block[0] !== 1) return undefined;
    if (module.shape[1] % 16 !== 0) return undefined;
    return { kernel: w8a8Kernel, ...common(binding), weights: load('weight'), scales: load('weight_scale') };
  },

  /** The kernel reads scales of rows as f32. */
  arrive(rt, packed) {
    if (packed.scales.dtype === 'f32') return packed;
    const scales = rt.allocate('f32', packed.scales.shape);
    ops.cast(rt, packed.scales, scales);
    packed.scales.dispose();
    return { ...packed, scales };
  },

  multiply(rt, x, packed, bias, y) {
    const made: Tensor[] = [];
    const keep = (tensor: Tensor): Tensor => {
      made.push(tensor);
      return tensor;
    };
    const wide = (tensor: Tensor): Tensor => {
      const flat = keep(tensor.view([packed.shape[0]]));
      if (flat.dtype === 'f32') return flat;
      const cast = keep(rt.allocate('f32', flat.shape));
      ops.cast(rt, flat, cast);
      return cast;
    };
    try {
      const { codes, scales } = takeCodes(rt, x, packed.weights.dtype);
      made.push(codes, scales);
      const w = { codes: packed.weights, scales: wide(packed.scales) };
      ops.gemmAct(rt, { codes, scales }, w, bias && wide(bias), y);
    } finally {
      for (const tensor of made) tensor.dispose();
    }
  },

  joining: {
    tile: 1,
    rows: ({ weights }) => weights.shape[0]!,
    readAlike: () => true,
    join: (rt, parts, shape) => ({
      ...parts[0]!,
      shape,
      weights: below(
        rt,
        parts.map(({ weights }) => weights),
      ),
      scales: below(
        rt,
        parts.map(({ scales }) => scales),
      ),
    }),
  },
};
