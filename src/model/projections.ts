import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { Columns } from './columns.js';
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

/** What project() makes; the caller disposes of it. */
export interface Projected {
  readonly q: Columns;
  readonly k: Columns;
  readonly v: Columns;
  dispose(): void;
}

/**
 * q [T, heads * headDim], k and v [T, kvHeads * headDim] of x [T,C], f32, of packed weights in the activation dtype: matrices of their own,
 * or columns of one.
 */
export function project(rt: NativeRuntime, weights: BlockWeights, plan: AttentionPlan, x: Tensor): Projected {
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
  const joined = fused ? undefined : weights.joined?.get(plan.q.name);
  if (joined || fused?.order === 'parts') {
    const of = apply(joined ?? (fused as NonNullable<typeof fused>).linear);
    const [qWidth, kvWidth] = [heads * headDim, kvHeads * headDim];
    return {
      q: { of, first: 0 },
      k: { of, first: qWidth },
      v: { of, first: qWidth + kvWidth },
      dispose: () => of.dispose(),
    };
  }
  if (!fused) return ofTheirOwn([plan.q, plan.k, plan.v].map(apply));
  // Head by head, the columns of each kv head are those of its queries, its key and its value.
  const tokens = x.shape[0] as number;
  const whole = apply(fused.linear);
  const rows = whole.view([tokens * kvHeads, fused.linear.n / kvHeads]);
  const part = (first: number, width: number): Tensor => {
    const y = rt.allocate(whole.dtype, [tokens, width * kvHeads]);
    const target = y.view([tokens * kvHeads, width]);
    ops.sliceColumns(rt, rows, target, { first });
    target.dispose();
    return y;
  };
  const width = (heads / kvHeads) * headDim;
  const parts = [part(0, width), part(width, headDim), part(width + headDim, headDim)];
  for (const tensor of [rows, whole]) tensor.dispose();
  return ofTheirOwn(parts);
}

function ofTheirOwn(parts: readonly Tensor[]): Projected {
  const [q, k, v] = parts.map((of) => ({ of, first: 0 })) as [Columns, Columns, Columns];
  return {
    q,
    k,
    v,
    dispose: () => {
      for (const tensor of parts) tensor.dispose();
    },
  };
}
