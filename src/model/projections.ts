import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { AttentionPlan } from './plan.js';
import type { BlockWeights, LinearRef } from './program.js';
import { applyLinear, linearRef, linearTensors } from './weights.js';

/** The linears that make q, k and v. */
export function projectionRefs(plan: AttentionPlan): LinearRef[] {
  return (plan.fused ? [plan.fused.linear] : [plan.q, plan.k, plan.v]).map((linear) => linearRef(linear));
}

export function projectionTensors(plan: AttentionPlan): [string, readonly number[]][] {
  return (plan.fused ? [plan.fused.linear] : [plan.q, plan.k, plan.v]).flatMap(linearTensors);
}

/** q f32 [T, heads * headDim], k and v f32 [T, kvHeads * headDim] of x [T,C]; the caller disposes of them. */
export function project(
  rt: NativeRuntime,
  weights: BlockWeights,
  plan: AttentionPlan,
  x: Tensor,
): { q: Tensor; k: Tensor; v: Tensor } {
  const { fused, headDim, heads, kvHeads } = plan;
  if (!fused)
    return {
      q: applyLinear(rt, weights, plan.q, x),
      k: applyLinear(rt, weights, plan.k, x),
      v: applyLinear(rt, weights, plan.v, x),
    };
  const tokens = x.shape[0] as number;
  const whole = applyLinear(rt, weights, fused.linear, x);
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
