import type { DType, NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { LinearPlan } from './plan.js';
import type { BlockWeights } from './program.js';
import type { PackedWeight } from './source.js';

export type CometWeight = Extract<PackedWeight, { layout: 'comet' }>;

/**
 * y = x Wᵀ + bias in W4Ax: x [M,K] f32, f16 or bf16 becomes codes (ops.quantizeComet), which ops.gemmComet multiplies. y [M,N] f32, f16
 * or bf16, bias f32 [N]. Throws LPQ_NATIVE_NUMERICS, late, for NaN and infinity in x.
 */
export function multiplyComet(
  rt: NativeRuntime,
  x: Tensor,
  packed: CometWeight,
  bias: Tensor | undefined,
  y: Tensor,
): void {
  const [rows, k] = x.shape as [number, number];
  const blocks = k / 128;
  const made: Tensor[] = [];
  const keep = (tensor: Tensor): Tensor => {
    made.push(tensor);
    return tensor;
  };
  try {
    let read = x;
    if (rt.device === 'cpu' && x.dtype !== 'f32') {
      read = keep(rt.allocate('f32', x.shape));
      ops.cast(rt, x, read);
    }
    const codes = {
      x8: keep(rt.allocate('i8', [rows, 128 * packed.eights])),
      x4: keep(rt.allocate('u8', [rows, 64 * (blocks - packed.eights)])),
      scales: keep(rt.allocate('f32', [blocks, Math.ceil(rows / 4) * 4])),
    };
    const { bits, clip, permutation } = packed;
    ops.quantizeComet(
      rt,
      read,
      { bits, clip, blocks: packed.blocks, ...(permutation && { order: permutation }) },
      codes,
    );
    const w = { codes: packed.weights, scales: packed.scales };
    ops.gemmComet(rt, { ...codes, blocks: packed.blocks }, w, bias, y);
  } finally {
    for (const tensor of made) tensor.dispose();
  }
}

/** What applyLinear() does, through ops.gemmComet: sums of blocks are scaled in fp32, and y is rounded to its dtype once. */
export function applyComet(
  rt: NativeRuntime,
  weights: BlockWeights,
  linear: LinearPlan,
  packed: CometWeight,
  x: Tensor,
  into: { y: Tensor; accumulate: boolean } | undefined,
  dtype: DType,
): Tensor {
  const y = into && !into.accumulate ? into.y : rt.allocate(into ? 'f32' : dtype, [x.shape[0] as number, linear.n]);
  const stored = linear.bias ? weights.get(`${linear.name}.bias`) : undefined;
  const bias = stored && rt.allocate('f32', stored.shape);
  if (stored && bias) ops.cast(rt, stored, bias);
  multiplyComet(rt, x, packed, bias, y);
  bias?.dispose();
  if (!into?.accumulate) return y;
  ops.add(rt, into.y, y, into.y);
  y.dispose();
  return into.y;
}
