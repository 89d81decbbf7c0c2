import type { DType, NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { LinearPlan } from './plan.js';
import type { BlockWeights } from './program.js';
import type { PackedWeight } from './source.js';

/** The same weight on the runtime's device; the given tensors are let go of. */
export function uploadPacked(rt: NativeRuntime, packed: PackedWeight): PackedWeight {
  const take = (tensor: Tensor): Tensor => {
    const there = rt.upload(tensor);
    tensor.dispose();
    return there;
  };
  const { weights, scales, zeros, ...rest } = packed;
  return { ...rest, weights: take(weights), scales: take(scales), ...(zeros && { zeros: take(zeros) }) };
}

export function disposePacked({ weights, scales, zeros }: PackedWeight): void {
  for (const tensor of [weights, scales, zeros]) tensor?.dispose();
}

/**
 * What applyLinear() does, through the kernel of the packed format. It reads and writes 16 bits (f16 on the CPU, whose
 * activations are f32), so its result is rounded once more than that of the dense product.
 */
export function applyPacked(
  rt: NativeRuntime,
  weights: BlockWeights,
  linear: LinearPlan,
  packed: PackedWeight,
  x: Tensor,
  into: { y: Tensor; accumulate: boolean } | undefined,
  dtype: DType,
): Tensor {
  const half = rt.activationDtype === 'f32' ? 'f16' : rt.activationDtype;
  const rows = x.shape[0] as number;
  const made: Tensor[] = [];
  const as = (tensor: Tensor, wanted: DType): Tensor => {
    if (tensor.dtype === wanted) return tensor;
    const cast = rt.allocate(wanted, tensor.shape);
    ops.cast(rt, tensor, cast);
    made.push(cast);
    return cast;
  };
  const biasWeight = linear.bias ? weights.get(`${linear.name}.bias`) : undefined;
  const product = rt.allocate(half, [rows, linear.n]);
  const { type, groupLength, zero } = packed;
  ops.gemmPacked(rt, as(x, half), packed, biasWeight && as(biasWeight, half), product, type, { groupLength, zero });
  try {
    if (!into && dtype === half) return product.view(product.shape);
    const wide = into && !into.accumulate ? into.y : rt.allocate(into ? 'f32' : dtype, product.shape);
    ops.cast(rt, product, wide);
    if (!into?.accumulate) return wide;
    ops.add(rt, into.y, wide, into.y);
    wide.dispose();
    return into.y;
  } finally {
    for (const tensor of [product, ...made]) tensor.dispose();
  }
}
