import type { DType, NativeRuntime, Tensor } from '../../native/binding.js';
import type { CacheStep } from '../../native/cache-ops.js';
import { type AttentionParams, ops } from '../../native/ops.js';
import { apart, firstOf, standsAlone } from '../model/columns.js';
import { attendSelected } from '../model/indexer.js';
import type { AttentionTensors } from '../model/program.js';
import { rotateOne } from '../model/turn.js';
import type { Step } from './step.js';

/** Where q, k and v begin in matrices that have other columns besides. */
export function firstColumns(
  { q, k, v }: AttentionTensors,
  { heads, kvHeads, headDim, valueDim = headDim }: AttentionParams,
): readonly [number | undefined, number | undefined, number | undefined] {
  return [firstOf(q, heads * headDim), firstOf(k, kvHeads * headDim), firstOf(v, kvHeads * valueDim)];
}

/**
 * Keeps a step's keys and values, turned where they are to be, and gives its queries [T, heads*headDim] likewise, in `dtype` (default: that
 * of q): one launch. The caller disposes of them.
 */
export function appendTurned(
  rt: NativeRuntime,
  t: AttentionTensors,
  p: AttentionParams,
  step: CacheStep,
  { keys, values }: { readonly keys: Tensor; readonly values: Tensor },
  dtype: DType = t.q.of.dtype,
): Tensor {
  const { heads, kvHeads, headDim, valueDim } = p;
  const width = heads * headDim;
  const [qFirst, kFirst, vFirst] = firstColumns(t, p);
  const { of } = t.q;
  const firsts = { ...(kFirst !== undefined && { kFirst }), ...(vFirst !== undefined && { vFirst }) };
  const inPlace = standsAlone(t.q, width) && of.dtype === dtype;
  const y = inPlace ? of.view(of.shape) : rt.allocate(dtype, [of.shape[0] as number, width]);
  if (inPlace && !t.rotation && !t.norms) {
    ops.cacheAppend(rt, t.k.of, t.v.of, step, keys, values, firsts);
    return y;
  }
  const shape = { heads, kvHeads, headDim, ...(valueDim !== undefined && { valueDim }) };
  const all = { ...shape, ...firsts, ...(qFirst !== undefined && { qFirst }) };
  ops.ropeAppend(rt, { q: of, k: t.k.of, v: t.v.of }, step, { y, keys, values }, all, t.rotation, t.norms);
  return y;
}

/** The queries of a block that reads another's keys, turned, [T, heads*headDim]; the caller disposes of them. */
export function turnedQueries(rt: NativeRuntime, { q, rotation }: AttentionTensors, p: AttentionParams): Tensor {
  rotateOne(rt, q, p.heads, p.headDim, rotation);
  return apart(rt, q, p.heads * p.headDim);
}

/** q, k and v as matrices of their own; the caller disposes of them. */
export function alone(
  rt: NativeRuntime,
  { q, k, v }: AttentionTensors,
  { heads, kvHeads, headDim, valueDim = headDim }: AttentionParams,
): { readonly q: Tensor; readonly k: Tensor; readonly v: Tensor } {
  return {
    q: apart(rt, q, heads * headDim),
    k: apart(rt, k, kvHeads * headDim),
    v: apart(rt, v, kvHeads * valueDim),
  };
}

/** Attention of a step's queries [T, heads*headDim], turned, over all keys and values that are kept, or those that were selected. */
export function attendKept(
  rt: NativeRuntime,
  { q, keys, values }: { readonly q: Tensor; readonly keys: Tensor; readonly values: Tensor },
  step: Step,
  { y, selected }: AttentionTensors,
  p: AttentionParams,
  sinks: Tensor | undefined,
): void {
  if (selected) attendSelected(rt, { q, k: keys, v: values, y }, selected, step, p);
  else ops.cachedAttention(rt, q, keys, values, step, y, { ...p, most: step.most, longest: step.longest }, sinks);
}
