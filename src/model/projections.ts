import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { apart, type Columns } from './columns.js';
import type { AttentionPlan, LinearPlan } from './plan.js';
import type { BlockWeights, LinearRef } from './program.js';
import { applyLinear, linearRef, linearTensors } from './weights.js';

/** The linears that make q, k and v. */
export function projectionRefs(plan: AttentionPlan): LinearRef[] {
  return projections(plan).map((linear) => linearRef(linear));
}

export function projectionTensors(plan: AttentionPlan): [string, readonly number[]][] {
  return projections(plan).flatMap(linearTensors);
}

/** The linears that there are. */
export function projections({ fused, q, k, v, reads, keysAsValues }: AttentionPlan): LinearPlan[] {
  if (fused) return [fused.linear];
  return reads !== undefined ? [q] : keysAsValues ? [q, k] : [q, k, v];
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
 * or columns of one. A block that reads another's keys makes q alone, which stands for the others, too.
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
  if (plan.reads !== undefined) {
    const q = { of: apply(plan.q), first: 0 };
    return { q, k: q, v: q, dispose: () => q.of.dispose() };
  }
  const joined = fused ? undefined : weights.joined?.get(plan.q.name);
  if (joined || fused?.order === 'parts') {
    const of = apply(joined ?? (fused as NonNullable<typeof fused>).linear);
    const [qWidth, kvWidth] = [heads * headDim, kvHeads * headDim];
    const k = { of, first: qWidth };
    const copy = plan.keysAsValues && apart(rt, k, kvWidth);
    return {
      q: { of, first: 0 },
      k,
      v: copy ? { of: copy, first: 0 } : { of, first: qWidth + kvWidth },
      dispose: () => {
        for (const tensor of copy ? [of, copy] : [of]) tensor.dispose();
      },
    };
  }
  if (!fused)
    return ofTheirOwn(plan.keysAsValues ? twice(rt, [plan.q, plan.k].map(apply)) : [plan.q, plan.k, plan.v].map(apply));
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

/** q and k, and k once more: what changes one leaves the other. */
function twice(rt: NativeRuntime, [q, k]: readonly Tensor[]): Tensor[] {
  const { dtype, shape } = k as Tensor;
  const v = rt.allocate(dtype, shape);
  ops.cast(rt, k as Tensor, v);
  return [q as Tensor, k as Tensor, v];
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
