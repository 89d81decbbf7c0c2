import { addon, type DType, type NativeRuntime, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { PackedWeight } from './kernels/kernel.js';
import type { LinearPlan } from './plan.js';
import type { BlockWeights } from './program.js';

interface Into {
  readonly y: Tensor;
  readonly accumulate: boolean;
}

/** Whether ops.gemmAct and gemmComet run on the runtime's device: the CPU, and CUDA devices of 9.0. */
export function multipliesCodes(rt: NativeRuntime): boolean {
  return rt.device === 'cpu' || addon().cudaDevices()[Number(rt.device.slice('cuda:'.length))]?.arch === 90;
}

/** The tensors of a packed weight, by the names of its fields. */
export function tensorsOf(packed: PackedWeight): Record<string, Tensor> {
  const fields = packed as unknown as Readonly<Record<string, Tensor | undefined>>;
  return Object.fromEntries(packed.kernel.tensors.flatMap((name) => (fields[name] ? [[name, fields[name]]] : [])));
}

/** What must be one thing for weights to be joined: the kernel and its settings, type, groups, inputs, and which tensors of which dtypes. */
export function formOf(part: PackedWeight): string {
  const tensors = Object.entries(tensorsOf(part)).map(([name, { dtype, shape }]) => [name, [dtype, shape.length]]);
  return JSON.stringify({ ...part, kernel: part.kernel.name, shape: part.shape[1], ...Object.fromEntries(tensors) });
}

/** The same weight on the runtime's device, as it is multiplied there; the given tensors are let go of. */
export function uploadPacked(rt: NativeRuntime, packed: PackedWeight): PackedWeight {
  const uploaded = uploadStored(rt, packed);
  return packed.kernel.arrive?.(rt, uploaded) ?? uploaded;
}

/** The same weight on the runtime's device, its tensors as they are stored; the given ones are let go of. */
export function uploadStored(rt: NativeRuntime, packed: PackedWeight): PackedWeight {
  const there = Object.entries(tensorsOf(packed)).map(([name, tensor]) => {
    const uploaded = rt.upload(tensor);
    tensor.dispose();
    return [name, uploaded] as const;
  });
  return { ...packed, ...Object.fromEntries(there) };
}

/** Weights in the form in which they are multiplied again and again. */
export async function settlePacked(rt: NativeRuntime, { packed = new Map() }: BlockWeights): Promise<void> {
  for (const [name, weight] of packed)
    if (weight.kernel.settle) packed.set(name, await weight.kernel.settle(rt, weight));
}

export function disposePacked(packed: PackedWeight): void {
  for (const tensor of Object.values(tensorsOf(packed))) tensor.dispose();
}

/** What applyLinear() does, through the weight's kernel. */
export function applyPacked(
  rt: NativeRuntime,
  weights: BlockWeights,
  linear: LinearPlan,
  packed: PackedWeight,
  x: Tensor,
  into: Into | undefined,
  dtype: DType,
): Tensor {
  const bias = linear.bias ? weights.get(`${linear.name}.bias`) : undefined;
  return (packed.kernel.wide ? applyWide : applyHalf)(rt, packed, x, bias, into, dtype);
}

/** Sums of blocks are scaled in fp32, and y is rounded to its dtype once. */
function applyWide(
  rt: NativeRuntime,
  packed: PackedWeight,
  x: Tensor,
  stored: Tensor | undefined,
  into: Into | undefined,
  dtype: DType,
): Tensor {
  const shape = [x.shape[0] as number, packed.shape[0]];
  const y = into && !into.accumulate ? into.y : rt.allocate(into ? 'f32' : dtype, shape);
  const bias = stored && rt.allocate('f32', stored.shape);
  if (stored && bias) ops.cast(rt, stored, bias);
  packed.kernel.multiply(rt, x, packed, bias, y);
  bias?.dispose();
  if (!into?.accumulate) return y;
  ops.add(rt, into.y, y, into.y);
  y.dispose();
  return into.y;
}

/**
 * A kernel that reads and writes 16 bits (f16 on the CPU, whose activations are f32): the result is rounded once more than that of
 * the dense product.
 */
function applyHalf(
  rt: NativeRuntime,
  packed: PackedWeight,
  x: Tensor,
  bias: Tensor | undefined,
  into: Into | undefined,
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
  const product = rt.allocate(half, [rows, packed.shape[0]]);
  packed.kernel.multiply(rt, as(x, half), packed, bias && as(bias, half), product);
  try {
    if (!into && dtype === half) return product.view(product.shape);
    if (into?.accumulate && rt.device !== 'cpu') {
      ops.add(rt, into.y, product, into.y);
      return into.y;
    }
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
