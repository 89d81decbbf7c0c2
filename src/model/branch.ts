import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { codesBeside } from './kernels/token-codes.js';
import type { BranchPlan, LinearPlan, NormPlan } from './plan.js';
import type { BlockState, BlockWeights } from './program.js';
import { applyLinear, applyNorm, asInput, codesOf, normTensors, weightOf } from './weights.js';

/** Norms around a branch, with their shapes. */
export function branchTensors(plan: BranchPlan): [string, readonly number[]][] {
  return [plan.norm, plan.postNorm, plan.residualNorm].flatMap(normTensors);
}

/**
 * What a branch reads of the residual stream: a new tensor (or a view, where there is nothing to do). What was pending is added to h.
 * `reader`: the one linear that reads it, where there is one.
 */
export function branchInput(
  rt: NativeRuntime,
  weights: BlockWeights,
  norm: NormPlan | undefined,
  state: Pick<BlockState, 'h' | 'pending'>,
  reader?: string,
): Tensor {
  const { h, pending } = state;
  if (norm && pending && (pending.y.dtype === 'f32' || pending.y.dtype === rt.activationDtype)) {
    const x = rt.allocate(rt.activationDtype, h.shape);
    const [weight, bias] = [norm.weight, norm.bias].map((name) =>
      name === undefined ? undefined : weightOf(weights, name),
    );
    const { kind, epsilon: eps, offset } = norm;
    const codes = codesBeside(rt, x, codesOf(weights, reader));
    ops.addNorm(rt, h, pending.y, weight, bias, x, { kind, eps, offset, scale: pending.scale }, codes);
    pending.y.dispose();
    state.pending = undefined;
    return x;
  }
  settle(rt, state);
  if (norm) return applyNorm(rt, weights, norm, h);
  return asInput(rt, h);
}

/** Adds what is pending to h. */
export function settle(rt: NativeRuntime, state: Pick<BlockState, 'h' | 'pending'>): void {
  if (!state.pending) return;
  const { y, scale } = state.pending;
  ops.add(rt, state.h, y, state.h, { scale });
  y.dispose();
  state.pending = undefined;
}

/**
 * Adds the branch's last linear of x to h, in place, with all that the plan puts around the sum; in a step of newest tokens it may be
 * left pending for the norm that reads the sum.
 */
export function addBranch(
  rt: NativeRuntime,
  weights: BlockWeights,
  plan: BranchPlan,
  linear: LinearPlan,
  x: Tensor,
  state: Pick<BlockState, 'h' | 'pending' | 'attend'>,
): void {
  settle(rt, state);
  const { h } = state;
  const packed = weights.packed?.get(`${linear.name}.weight`);
  const wait = state.attend !== undefined && plan.residualNorm === undefined;
  if (plan.postNorm || plan.multiplier !== 1) {
    const y = applyLinear(rt, weights, linear, x);
    if (plan.postNorm) applyNorm(rt, weights, plan.postNorm, y, true);
    state.pending = { y, scale: plan.multiplier };
    if (!wait) settle(rt, state);
  } else if (packed && wait) {
    // Rounded to 16 bits, or in fp32, as where it is added at once.
    const dtype = packed.kernel.wide ? 'f32' : rt.activationDtype;
    state.pending = { y: applyLinear(rt, weights, linear, x, undefined, dtype), scale: 1 };
  } else applyLinear(rt, weights, linear, x, { y: h, accumulate: true });
  if (plan.residualNorm) applyNorm(rt, weights, plan.residualNorm, h, true);
}
