import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { BranchPlan, LinearPlan, NormPlan } from './plan.js';
import type { BlockWeights } from './program.js';
import { applyLinear, applyNorm, normTensors } from './weights.js';

/** Norms around a branch, with their shapes. */
export function branchTensors(plan: BranchPlan): [string, readonly number[]][] {
  return [plan.norm, plan.postNorm, plan.residualNorm].flatMap(normTensors);
}

/** What a branch reads of the residual stream h f32 [T,C]: a new tensor (or a view, where there is nothing to do). */
export function branchInput(rt: NativeRuntime, weights: BlockWeights, norm: NormPlan | undefined, h: Tensor): Tensor {
  if (norm) return applyNorm(rt, weights, norm, h);
  if (h.dtype === rt.activationDtype) return h.view(h.shape);
  const x = rt.allocate(rt.activationDtype, h.shape);
  ops.cast(rt, h, x);
  return x;
}

/** Adds the branch's last linear of x to h, in place, with all that the plan puts around the sum. */
export function addBranch(
  rt: NativeRuntime,
  weights: BlockWeights,
  plan: BranchPlan,
  linear: LinearPlan,
  x: Tensor,
  h: Tensor,
): void {
  if (plan.postNorm || plan.multiplier !== 1) {
    const y = applyLinear(rt, weights, linear, x);
    if (plan.postNorm) applyNorm(rt, weights, plan.postNorm, y, true);
    ops.add(rt, h, y, h, { scale: plan.multiplier });
    y.dispose();
  } else applyLinear(rt, weights, linear, x, { y: h, accumulate: true });
  if (plan.residualNorm) applyNorm(rt, weights, plan.residualNorm, h, true);
}
