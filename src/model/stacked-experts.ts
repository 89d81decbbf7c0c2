import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { ExpertGating } from '../../native/packed-ops.js';
import { oneAfterAnother } from './kernels/join.js';
import type { PackedWeight } from './kernels/kernel.js';
import { disposePacked, formOf, tensorsOf } from './packed.js';
import type { Block, BlockWeights, LinearRef } from './program.js';

/** The packed weights of all experts of a stage as one, multiplied in one launch: what `weights.stacked` holds by the stage's id. */
export interface StackedExperts {
  /** Its tensors have the experts in front of the dimensions of one; `shape` is that of one. */
  readonly packed: PackedWeight;
  /** [E,N] in the dtype of products. */
  readonly bias?: Tensor;
  /** Gate and up are interleaved: the product is gated. */
  readonly interleaved?: boolean;
}

/** What products of 16 bits read and write: f16 on the CPU, whose activations are f32. */
function halfOf(rt: NativeRuntime): 'f16' | 'bf16' {
  return rt.activationDtype === 'bf16' ? 'bf16' : 'f16';
}

/**
 * Puts the packed weights of a mixture's experts one after another, those of one expert that read one input (gate, up) below one another,
 * where all are of one form and their kernel takes experts. Their own tensors are let go of. What cannot be stacked stays as it is, and is
 * multiplied expert by expert. For weights that are used whole and not changed, as joinSiblings.
 */
export function stackExperts(rt: NativeRuntime, block: Block, weights: BlockWeights): void {
  for (const { id, feeds } of block.stages) {
    const experts = feeds.map(({ linears }) => linears).filter((linears) => linears[0]?.expert !== undefined);
    if (experts.length > 0) stack(rt, weights, id, experts);
  }
}

function stack(
  rt: NativeRuntime,
  weights: BlockWeights,
  stage: string,
  experts: readonly (readonly LinearRef[])[],
): void {
  const linears = experts.flat();
  const parts = linears.flatMap(({ name }) => weights.packed?.get(`${name}.weight`) ?? []);
  const [first] = parts;
  const kernel = first?.kernel;
  if (!first || !kernel?.multiplyExperts || !kernel.joining || parts.length < linears.length) return;
  if (linears.some(({ name }) => weights.activations?.has(name))) return;
  const { joining } = kernel;
  const each = experts[0]!.length;
  // Rows without padding between those of one expert.
  const padded = each > 1 && parts.some((part) => joining.rows(part) !== part.shape[0]);
  if (
    padded ||
    (each > 1 && !(each === 2 && kernel.interleave)) ||
    new Set(parts.map((part) => formOf(part) + part.shape)).size > 1
  )
    return;
  const biases = linears.flatMap(({ name }) => weights.get(`${name}.bias`) ?? []);
  if (biases.length > 0 && biases.length < linears.length) return;
  const n = first.shape[0] * each;
  const tensors = Object.keys(tensorsOf(first)).map((name) => {
    const of = parts.map((part) => tensorsOf(part)[name] as Tensor);
    const [down, ...rest] = of[0]!.shape as [number, ...number[]];
    const whole = oneAfterAnother(rt, of, [experts.length, each * down, ...rest]);
    // One after the other, so that no more than one kind of tensor is there twice.
    for (const tensor of of) tensor.dispose();
    return [name, whole] as const;
  });
  const bias = biases.length > 0 && stackedBias(rt, biases, [experts.length, n]);
  const packed: PackedWeight = { ...first, shape: [n, first.shape[1]], ...Object.fromEntries(tensors) };
  weights.stacked ??= new Map();
  weights.stacked.set(stage, each === 2 ? interleaved(rt, packed, bias) : { packed, ...(bias && { bias }) });
  for (const { name } of linears) {
    weights.packed?.delete(`${name}.weight`);
    weights.get(`${name}.bias`)?.dispose();
    weights.delete(`${name}.bias`);
  }
}

function interleaved(rt: NativeRuntime, packed: PackedWeight, bias: Tensor | false): StackedExperts {
  const made = { packed: packed.kernel.interleave?.(rt, packed) ?? packed, interleaved: true };
  if (!bias) return made;
  const rows = rt.allocate(bias.dtype, bias.shape);
  ops.interleaveGates(rt, bias, rows, { of: 'rows' });
  bias.dispose();
  return { ...made, bias: rows };
}

function stackedBias(rt: NativeRuntime, biases: readonly Tensor[], shape: readonly [number, number]): Tensor {
  const half = halfOf(rt);
  const cast = biases.map((bias) => {
    const to = rt.allocate(half, bias.shape);
    ops.cast(rt, bias, to);
    return to;
  });
  const whole = oneAfterAnother(rt, cast, shape);
  for (const tensor of cast) tensor.dispose();
  return whole;
}

export function disposeStacked({ packed, bias }: StackedExperts): void {
  disposePacked(packed);
  bias?.dispose();
}

/**
 * The rows of x [M,K], sorted by expert, times the weights of their experts: [M,N] in the dtype of activations. `offsets` I32 [E+1] or more:
 * where the rows of each begin. Rows behind those of the experts are those of `others` [M,N], or hold nothing. `gating`: of interleaved
 * ones, which make [M,N/2].
 */
export function applyStacked(
  rt: NativeRuntime,
  { packed, bias, interleaved }: StackedExperts,
  x: Tensor,
  offsets: Tensor,
  { others, gating }: { readonly others?: Tensor | undefined; readonly gating?: ExpertGating } = {},
): Tensor {
  const half = halfOf(rt);
  const own = offsets.view([packed.weights.shape[0]! + 1]);
  const read = inDtype(rt, x, half);
  const product = rt.allocate(half, [x.shape[0] as number, interleaved ? packed.shape[0] / 2 : packed.shape[0]]);
  if (others) ops.cast(rt, others, product);
  packed.kernel.multiplyExperts?.(rt, read, own, packed, bias, product, interleaved ? gating : undefined);
  const y = inDtype(rt, product, rt.activationDtype);
  for (const tensor of [own, read, product]) tensor.dispose();
  return y;
}

function inDtype(rt: NativeRuntime, x: Tensor, dtype: Tensor['dtype']): Tensor {
  if (x.dtype === dtype) return x.view(x.shape);
  const y = rt.allocate(dtype, x.shape);
  ops.cast(rt, x, y);
  return y;
}
