import type { DType, NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { tell } from '../core/activity.js';
import { LpqError } from '../core/error.js';
import { applyMixed, asRead, disposeMixed } from './activations.js';
import { type Columns, standsAlone } from './columns.js';
import { expertSource } from './fused-experts.js';
import { applyPacked, disposePacked, uploadPacked } from './packed.js';
import type { LinearPlan, NormPlan } from './plan.js';
import type { BlockWeights, LinearRef } from './program.js';
import type { WeightShapes, WeightSource } from './source.js';
import { disposeStacked } from './stacked-experts.js';

/**
 * Reads the named weights onto the runtime's device, linears as [N, K]: those under `transposed` are turned, unless the
 * source has them the right way already. The caller disposes of them with disposeWeights.
 */
export async function loadWeights(
  rt: NativeRuntime,
  source: WeightSource,
  names: Iterable<string>,
  transposed: ReadonlySet<string> = new Set(),
): Promise<BlockWeights> {
  const weights: BlockWeights = new Map();
  const view = expertSource(source);
  if (view.kv) weights.kv = view.kv;
  if (view.latents) weights.latents = view.latents;
  try {
    for (const name of names) {
      tell(`loading ${name}`);
      const packed = await view.packed?.(name);
      if (packed) {
        weights.packed ??= new Map();
        weights.packed.set(name, uploadPacked(rt, packed));
        continue;
      }
      const mixed = view.mixed?.(name);
      if (mixed) {
        if (rt.device !== 'cpu') mixed.then(disposeMixed, () => {});
        requireCpu(
          rt,
          `'${name}' of ${source.dir} is multiplied in W4Ax, and this device has no kernel for it`,
          'cpu, or a device of compute capability 9.0 and 4-bit weights',
        );
        weights.mixed ??= new Map();
        weights.mixed.set(name, await mixed);
        continue;
      }
      const form = view.reads?.(name);
      if (form) {
        weights.activations ??= new Map();
        weights.activations.set(name.replace(/\.weight$/, ''), form);
      }
      const host = await view.tensor(name);
      try {
        const weight = rt.upload(host);
        weights.set(name, storedTurned(view, name, transposed) ? turned(rt, weight) : weight);
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

/** Throws LPQ_DEVICE where the device has no kernel for a weight. */
function requireCpu(rt: NativeRuntime, what: string, expected: string): void {
  if (rt.device === 'cpu') return;
  throw new LpqError('LPQ_DEVICE', what, { got: rt.device, expected, hint: 'Use --device cpu.' });
}

/** Whether the source gives a weight as [K, N]. */
export function storedTurned(source: WeightShapes, name: string, transposed: ReadonlySet<string>): boolean {
  return transposed.has(name) && !source.quantized?.(name);
}

function turned(rt: NativeRuntime, weight: Tensor): Tensor {
  const [k, n] = weight.shape as [number, number];
  const y = rt.allocate(weight.dtype, [n, k]);
  ops.transpose(rt, weight, y);
  weight.dispose();
  return y;
}

export function disposeWeights(weights: BlockWeights): void {
  for (const tensor of weights.values()) tensor.dispose();
  for (const packed of weights.packed?.values() ?? []) disposePacked(packed);
  for (const mixed of weights.mixed?.values() ?? []) disposeMixed(mixed);
  for (const banded of weights.banded?.values() ?? []) banded.dispose();
  for (const expanded of weights.expanded?.values() ?? []) expanded.dispose();
  for (const stacked of weights.stacked?.values() ?? []) disposeStacked(stacked);
  weights.clear();
  weights.packed?.clear();
  weights.mixed?.clear();
  weights.joined?.clear();
  weights.banded?.clear();
  weights.stacked?.clear();
  weights.expanded?.clear();
  weights.activations?.clear();
}

/** Names and shapes of the tensors of a linear or a norm. */
export function linearTensors(linear: LinearPlan): [string, readonly number[]][] {
  const weight: [string, readonly number[]] = [`${linear.name}.weight`, [linear.n, linear.k]];
  return linear.bias ? [weight, [`${linear.name}.bias`, [linear.n]]] : [weight];
}

export function normTensors(norm: NormPlan | undefined): [string, readonly number[]][] {
  if (norm?.split) return splitNames(norm).map((name) => [name, [norm.size]]);
  const shape = norm && norm.turns > 1 ? [norm.turns, norm.size] : [norm?.size as number];
  return [norm?.weight, norm?.bias].flatMap((name) => (name === undefined ? [] : [[name, shape]]));
}

/** Of a norm with a tensor a head. */
export function splitNames({ weight, turns }: NormPlan): string[] {
  return Array.from({ length: turns }, (_, turn) => (weight as string).replace('{head}', String(turn)));
}

export function linearRef(linear: LinearPlan, expert?: number): LinearRef {
  const { name, n, k, transposed } = linear;
  return { name, n, k, ...(expert !== undefined && { expert }), ...(transposed && { transposed }) };
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
  const packed = weights.packed?.get(`${linear.name}.weight`);
  if (packed) return applyPacked(rt, weights, linear, packed, x, into, dtype);
  const mixed = weights.mixed?.get(`${linear.name}.weight`);
  if (mixed) return applyMixed(rt, weights, linear, mixed, x, into);
  const form = weights.activations?.get(linear.name);
  if (!form) return applyDense(rt, weights, linear, x, into, dtype);
  const read = asRead(rt, x, form);
  const y = applyDense(rt, weights, linear, read, into, dtype);
  read.dispose();
  return y;
}

/** applyLinear() of a weight that is a matrix, and of x as the linear reads it. */
export function applyDense(
  rt: NativeRuntime,
  weights: BlockWeights,
  linear: LinearPlan,
  read: Tensor,
  into?: { y: Tensor; accumulate: boolean },
  dtype: DType = 'f32',
): Tensor {
  const y = into?.y ?? rt.allocate(dtype, [read.shape[0] as number, linear.n]);
  const bias = linear.bias ? weightOf(weights, `${linear.name}.bias`) : undefined;
  const accumulate = into?.accumulate ?? false;
  const name = `${linear.name}.weight`;
  const weight = weights.banded?.get(name) ?? weightOf(weights, name);
  ops.linear(rt, read, weight, bias, y, accumulate ? { accumulate } : {});
  return y;
}

/** The dtype that what the linear of this name reads becomes; undefined where it reads floats. */
export function codesOf(weights: BlockWeights, linear: string | undefined): DType | undefined {
  const packed = linear === undefined ? undefined : weights.packed?.get(`${linear}.weight`);
  return packed?.kernel.codes?.(packed);
}

/** The norm of x f32 [T,C] row by row: a new tensor that linears read, or x itself with `inPlace`. */
export function applyNorm(
  rt: NativeRuntime,
  weights: BlockWeights,
  norm: NormPlan,
  x: Tensor,
  inPlace = false,
): Tensor {
  const y = inPlace ? x : rt.allocate(rt.activationDtype, x.shape);
  applyNormInto(rt, weights, norm, x, y);
  return y;
}

/** applyNorm() into y, which may be x. */
export function applyNormInto(rt: NativeRuntime, weights: BlockWeights, norm: NormPlan, x: Tensor, y: Tensor): void {
  const weight = norm.weight === undefined ? undefined : weightOf(weights, norm.weight);
  const bias = norm.bias === undefined ? undefined : weightOf(weights, norm.bias);
  const { epsilon: eps, offset, turns } = norm;
  if (norm.kind === 'layer') ops.layernorm(rt, x, weight, bias, y, { eps, offset, turns });
  else ops.rmsnorm(rt, x, weight, y, { eps, offset });
}

/** x in the dtype that linears read: a new tensor, or a view of x where it has that already. */
export function asInput(rt: NativeRuntime, x: Tensor): Tensor {
  if (x.dtype === rt.activationDtype) return x.view(x.shape);
  const y = rt.allocate(rt.activationDtype, x.shape);
  ops.cast(rt, x, y);
  return y;
}

/** applyLinear() of x of any activation dtype; the result is f32. */
export function applyLinearTo(rt: NativeRuntime, weights: BlockWeights, linear: LinearPlan, x: Tensor): Tensor {
  const read = asInput(rt, x);
  const y = applyLinear(rt, weights, linear, read);
  read.dispose();
  return y;
}

/** The norm of `width` columns, in place: runs of norm.size of them, each a row. */
export function applyNormTo(
  rt: NativeRuntime,
  weights: BlockWeights,
  norm: NormPlan,
  columns: Columns,
  width: number,
): void {
  const { of, first } = columns;
  const runs = width / norm.size;
  if (norm.split) {
    const { epsilon: eps, offset, size } = norm;
    for (const [turn, name] of splitNames(norm).entries())
      ops.layernorm(rt, of, weightOf(weights, name), undefined, of, {
        eps,
        offset,
        first: first + turn * size,
        width: size,
      });
    return;
  }
  if (standsAlone(columns, width)) {
    const rows = of.view([(of.shape[0] as number) * runs, norm.size]);
    applyNorm(rt, weights, norm, rows, true);
    rows.dispose();
    return;
  }
  const { weight, bias, epsilon: eps, offset, turns } = norm;
  const [gain, shift] = [weight, bias].map((name) => (name === undefined ? undefined : weightOf(weights, name)));
  if (norm.kind === 'layer')
    ops.layernorm(rt, of, gain, shift, of, { eps, offset, turns, first, runs, width: norm.size });
  else ops.rmsnorm(rt, of, gain, of, { eps, offset, first, runs, width: norm.size });
}
