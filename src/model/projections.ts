import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { AttentionPlan, LinearPlan } from './plan.js';
import type { BlockWeights, LinearRef } from './program.js';
import { applyLinear, linearRef, linearTensors } from './weights.js';

/** The linears that make q, k and v. */
export function projectionRefs(plan: AttentionPlan): LinearRef[] {
  return (plan.fused ? [plan.fused.linear] : [plan.q, plan.k, plan.v]).map((linear) => linearRef(linear));
}

export function projectionTensors(plan: AttentionPlan): [string, readonly number[]][] {
  return (plan.fused ? [plan.fused.linear] : [plan.q, plan.k, plan.v]).flatMap(linearTensors);
}

/**
 * q [T, heads * headDim], k and v [T, kvHeads * headDim] of x [T,C], f32, of packed weights in the activation dtype; the caller
 * disposes of them.
 */
export function project(
  rt: NativeRuntime,
  weights: BlockWeights,
  plan: AttentionPlan,
  x: Tensor,
): { q: Tensor; k: Tensor; v: Tensor } {
  const { fused, headDim, heads, kvHeads } = plan;
  // A packed product is rounded to 16 bits already, and what comes next reads those on a device.
  const apply = (linear: LinearPlan): Tensor =>
    applyLinear(
      rt,
      weights,
      linear,
      x,
      undefined,
      weights.packed?.has(`${linear.name}.weight`) ? rt.activationDtype : 'f32',
    );
  if (!fused) return { q: apply(plan.q), k: apply(plan.k), v: apply(plan.v) };
  const tokens = x.shape[0] as number;
  const whole = apply(fused.linear);
  // Head by head, the columns of each kv head are those of its queries, its key and its value.
  const byHead = fused.order === 'heads';
  const turns = byHead ? kvHeads : 1;
  const rows = whole.view([tokens * turns, fused.linear.n / turns]);
  const part = (first: number, width: number): Tensor => {
    const y = rt.allocate(whole.dtype, [tokens, width * turns]);
    const target = y.view([tokens * turns, width]);
    ops.sliceColumns(rt, rows, target, { first });
    target.dispose();
    return y;
  };
  const [qWidth, kvWidth] = [(heads / turns) * headDim, (kvHeads / turns) * headDim];
  const parts = { q: part(0, qWidth), k: part(qWidth, kvWidth), v: part(qWidth + kvWidth, kvWidth) };
  for (const tensor of [rows, whole]) tensor.dispose();
  return parts;
}
