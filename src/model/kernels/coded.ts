import type { NativeRuntime, Tensor } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { below } from './join.js';
import type { PackedKernel, PackedWeight } from './kernel.js';

/** Codes U8 [N,K], one a byte, with their scales [N,G]: what the CPU's product over packed codes is laid from, once siblings are joined. */
export interface CodedWeight extends PackedWeight {
  /** The zero point of all, where there is none a group. */
  readonly zero: number;
  readonly global: number;
  readonly zeros?: Tensor;
  /** I32 [2,K]: which column of the codes stands at each place, and which of x it multiplies. */
  readonly order?: Tensor;
}

/** ops.linearCodes: any type of 1 to 8 bits, in blocks of memory made when a model is loaded (native/cpu/packed). */
export const codedKernel: PackedKernel<CodedWeight> = {
  name: 'coded',
  tensors: ['weights', 'scales', 'zeros', 'order'],
  wide: true,
  bind: () => undefined,

  async settle(rt, packed) {
    const { weights: codes, scales, zeros, order, type, groupSize: group, zero, global } = packed;
    const [n, k] = packed.shape;
    const block = await ops.layCodes(rt, { codes, scales, zeros, order }, type, { n, k, group, zero, global });
    for (const tensor of [codes, scales, zeros, order]) tensor?.dispose();
    return { kernel: laidKernel, shape: packed.shape, type, groupSize: group, weights: block, scales: block };
  },

  multiply() {
    throw new TypeError('codes are multiplied once they are laid');
  },

  joining: {
    tile: 1,
    rows: ({ shape }) => shape[0],
    readAlike: (_rt, parts) => parts.every(({ order }) => sameBytes(order, parts[0]!.order)),
    join: (rt, parts, shape) => {
      const [first] = parts as [CodedWeight];
      const { zeros } = first;
      const order = first.order?.view(first.order.shape);
      return {
        ...first,
        shape,
        weights: below(
          rt,
          parts.map(({ weights }) => weights),
        ),
        scales: below(
          rt,
          parts.map(({ scales }) => scales),
        ),
        ...(zeros && {
          zeros: below(
            rt,
            parts.map((part) => part.zeros as Tensor),
          ),
        }),
        ...(order && { order }),
      };
    },
  },
};

/** The same weight as the product reads it; `scales` is the block, too, which has them. */
const laidKernel: PackedKernel = {
  name: 'laid',
  tensors: ['weights'],
  wide: true,
  bind: () => undefined,
  multiply: (rt: NativeRuntime, x, packed, bias, y) => ops.linearCodes(rt, x, packed.weights, bias, y),
};

function sameBytes(a: Tensor | undefined, b: Tensor | undefined): boolean {
  return a === b || (a !== undefined && b !== undefined && Buffer.compare(a.bytes(), b.bytes()) === 0);
}
