import type { DType, NativeRuntime, Tensor } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import type { PackedKernel, PackedWeight } from './kernel.js';
import { takeCodes } from './token-codes.js';

/**
 * A weight of any layout and type, times activations that become codes of 8 bits first, one scale per token (Tilus, arXiv:2504.12984,
 * section 9.3). The numbers of the codes are exact in 16 bits but for a factor from 1 to 2 per token, which multiplies the products: y is
 * rounded twice. `dtype`: i8 or f8_e4m3. Weights whose kernels read codes already are returned as they are.
 */
export function byCodes<W extends PackedWeight>(packed: W, dtype: DType): W {
  const kernel = packed.kernel;
  if (kernel.codes || kernel.readsCodes) return packed;
  const coded: PackedKernel = {
    ...kernel,
    name: `${kernel.name} by ${dtype}`,
    codes: () => dtype,

    /** Throws LPQ_NATIVE_NUMERICS, late, for NaN and infinity in x. */
    multiply(rt: NativeRuntime, x: Tensor, weight: PackedWeight, bias: Tensor | undefined, y: Tensor): void {
      const made: Tensor[] = [];
      const keep = (tensor: Tensor): Tensor => {
        made.push(tensor);
        return tensor;
      };
      try {
        const read = takeCodes(rt, x, dtype);
        keep(read.codes);
        keep(read.scales);
        const numbers = keep(rt.allocate(x.dtype, x.shape));
        const rest = keep(rt.allocate('f32', [x.shape[0] as number]));
        ops.widenTokens(rt, read, numbers, rest);
        kernel.multiply(rt, numbers, weight, undefined, y);
        ops.scaleTokens(rt, rest, bias, y);
      } finally {
        for (const tensor of made) tensor.dispose();
      }
    },
    ...(kernel.arrive && { arrive: (rt, weight) => byCodes(kernel.arrive!(rt, weight), dtype) }),
    ...(kernel.settle && { settle: async (rt, weight) => byCodes(await kernel.settle!(rt, weight), dtype) }),
  };
  return { ...packed, kernel: coded };
}
