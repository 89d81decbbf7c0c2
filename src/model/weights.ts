import type { DType, NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import { expertSource } from './fused-experts.js';
import type { LinearPlan, NormPlan } from './plan.js';
import type { BlockWeights, LinearRef } from './program.js';
import type { WeightSource } from './source.js';

/** Reads the named weights onto the runtime's device. The caller disposes of them with disposeWeights. */
export async function loadWeights(
  rt: NativeRuntime,
  source: WeightSource,
  names: Iterable<string>,
): Promise<BlockWeights> {
  const weights: BlockWeights = new Map();
  const view = expertSource(source);
  try {
    for (const name of names) {
      const host = await view.tensor(name);
      try {
        weights.set(name, rt.upload(host));
      } finally {
        host.dispose();
      }
    }
  } catch (error) {
    disposeWeights(weights);
    throw error;
  }
  return weights;
}

export function disposeWeights(weights: BlockWeights): void {
  for (const tensor of weights.values()) tensor.dispose();
  weights.clear();
}

/** Names and shapes of the tensors of a linear or a norm. */
export function linearTensors(linear: LinearPlan): [string, readonly number[]][] {
  const weight: [string, readonly number[]] = [`${linear.name}.weight`, [linear.n, linear.k]];
  return linear.bias ? [weight, [`${linear.name}.bias`, [linear.n]]] : [weight];
}

export function normTensors(norm: NormPlan | undefined): [string, readonly number[]][] {
  return norm ? [[norm.weight, [norm.size]]] : [];
}

export function linearRef(linear: LinearPlan, expert?: number): LinearRef {
  return { name: linear.name, n: linear.n, k: linear.k, ...(expert !== undefined && { expert }) };
}

/** Throws LPQ_TENSOR_MISSING: the caller loaded other weights than the block's `tensors`. */
export function weightOf(weights: BlockWeights, name: string): Tensor {
  const tensor = weights.get(name);
  if (tensor) return tensor;
  throw new LpqError('LPQ_TENSOR_MISSING', `tensor '${name}' was not loaded`);
}

/**
 * y = x Wᵀ + b of x [T,K] in the runtime's activation dtype; into `y` [T,N] where given (`accumulate`: added to it), else
 * a new tensor, f32 unless `dtype` says otherwise.
 */
export function applyLinear(
  rt: NativeRuntime,
  weights: BlockWeights,
  linear: LinearPlan,
  x: Tensor,
  into?: { y: Tensor; accumulate: boolean },
  dtype: DType = 'f32',
): Tensor {
  const y = into?.y ?? rt.allocate(dtype, [x.shape[0] as number, linear.n]);
  const bias = linear.bias ? weightOf(weights, `${linear.name}.bias`) : undefined;
  const accumulate = into?.accumulate ?? false;
  ops.linear(rt, x, weightOf(weights, `${linear.name}.weight`), bias, y, accumulate ? { accumulate } : {});
  return y;
}

/** The norm of x f32 [..,C] row by row: a new tensor that linears read, or x itself with `inPlace`. */
export function applyNorm(
  rt: NativeRuntime,
  weights: BlockWeights,
  norm: NormPlan,
  x: Tensor,
  inPlace = false,
): Tensor {
  const y = inPlace ? x : rt.allocate(rt.activationDtype, x.shape);
  ops.rmsnorm(rt, x, weightOf(weights, norm.weight), y, { eps: norm.epsilon });
  return y;
}
