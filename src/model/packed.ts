import { addon, type DType, type NativeRuntime, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { multiplyComet } from './comet.js';
import type { LinearPlan } from './plan.js';
import type { BlockWeights } from './program.js';
import type { PackedWeight } from './source.js';

/** Whether ops.gemmAct and gemmComet run on the runtime's device: the CPU, and CUDA devices of 9.0. */
export function multipliesCodes(rt: NativeRuntime): boolean {
  return rt.device === 'cpu' || addon().cudaDevices()[Number(rt.device.slice('cuda:'.length))]?.arch === 90;
}

/** The tensors of a packed weight, by the names of its fields. */
export function tensorsOf(packed: PackedWeight): Record<string, Tensor> {
  return {
    weights: packed.weights,
    scales: packed.scales,
    ...('zeros' in packed && packed.zeros && { zeros: packed.zeros }),
    ...('metadata' in packed && { metadata: packed.metadata }),
    ...(packed.layout === 'comet' && { bits: packed.bits, clip: packed.clip, blocks: packed.blocks }),
    ...('permutation' in packed && packed.permutation && { permutation: packed.permutation }),
  };
}

/** The same weight on the runtime's device; the given tensors are let go of. Scales of rows become f32, as their kernel reads them. */
export function uploadPacked(rt: NativeRuntime, packed: PackedWeight): PackedWeight {
  const there = Object.entries(tensorsOf(packed)).map(([name, tensor]) => {
    const uploaded = rt.upload(tensor);
    tensor.dispose();
    return [name, uploaded] as const;
  });
  const uploaded: PackedWeight = { ...packed, ...Object.fromEntries(there) };
  if (uploaded.layout !== 'w8a8' || uploaded.scales.dtype === 'f32') return uploaded;
  const scales = rt.allocate('f32', uploaded.scales.shape);
  ops.cast(rt, uploaded.scales, scales);
  uploaded.scales.dispose();
  return { ...uploaded, scales };
}

export function disposePacked(packed: PackedWeight): void {
  for (const tensor of Object.values(tensorsOf(packed))) tensor.dispose();
}

/**
 * y = x Wᵀ + bias through the kernel of the weight's layout; x [M,K] and y [M,N] f16 or bf16, bias [N] of that dtype; of comet the bias is f32,
 * and x and y may be.
 */
export function multiplyPacked(
  rt: NativeRuntime,
  x: Tensor,
  packed: PackedWeight,
  bias: Tensor | undefined,
  y: Tensor,
): void {
  const { type, groupLength } = packed;
  if (packed.layout === 'comet') multiplyComet(rt, x, packed, bias, y);
  else if (packed.layout === 'w8a8') multiplyCodes(rt, x, packed, bias, y);
  else if (packed.layout === 'tilus') ops.gemmPacked(rt, x, packed, bias, y, type, { groupLength, zero: packed.zero });
  else if (packed.layout === 'marlin')
    ops.gemmMarlin(rt, x, packed, bias, y, { bits: type.bits as number, groupLength });
  else if (packed.layout === 'sparse_marlin')
    ops.gemmSparseMarlin(rt, x, packed, bias, y, { bits: type.bits as number, groupLength });
  else ops.gemmTurbomind(rt, x, packed, bias, y, type, { groupLength, experts: packed.experts });
}

/** The same for weights whose activations become codes first, one scale a token. */
function multiplyCodes(rt: NativeRuntime, x: Tensor, packed: PackedWeight, bias: Tensor | undefined, y: Tensor): void {
  const [tokens, k] = x.shape as [number, number];
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
    const codes = keep(rt.allocate(packed.weights.dtype, [tokens, k]));
    const scales = keep(rt.allocate('f32', [tokens]));
    ops.quantizeTokens(rt, x, { codes, scales });
    const w = { codes: packed.weights, scales: wide(packed.scales) };
    ops.gemmAct(rt, { codes, scales }, w, bias && wide(bias), y);
  } finally {
    for (const tensor of made) tensor.dispose();
  }
}

/**
 * What applyLinear() does, through the kernel of the weight's layout. It reads and writes 16 bits (f16 on the CPU, whose
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
  multiplyPacked(rt, as(x, half), packed, biasWeight && as(biasWeight, half), product);
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
