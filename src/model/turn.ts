import type { NativeRuntime } from '../../native/binding.js';
import type { Rotation } from '../../native/cache-ops.js';
import { type AttentionParams, ops } from '../../native/ops.js';
import { type Columns, firstOf } from './columns.js';
import type { AttentionTensors } from './program.js';

/** Normalises and turns q and k where they lie, where they are to be. */
export function rotate(
  rt: NativeRuntime,
  { q, k, norms, rotation }: Omit<AttentionTensors, 'v' | 'y'>,
  { heads, kvHeads, headDim }: Pick<AttentionParams, 'heads' | 'kvHeads' | 'headDim'>,
): void {
  if (norms)
    for (const [{ of, first }, count, weight] of [[q, heads, norms.q] as const, [k, kvHeads, norms.k] as const])
      ops.rmsnorm(rt, of, weight, of, { eps: norms.eps, offset: norms.offset, first, runs: count });
  for (const [columns, count] of [[q, heads] as const, [k, kvHeads] as const])
    rotateOne(rt, columns, count, headDim, rotation);
}

/** Turns the columns of `heads` heads where they lie. */
export function rotateOne(
  rt: NativeRuntime,
  columns: Columns,
  heads: number,
  headDim: number,
  rotation: Rotation | undefined,
): void {
  if (!rotation) return;
  const { cos, sin, positions, rotary, style } = rotation;
  const first = firstOf(columns, heads * headDim);
  const turn = { heads, headDim, rotary, style, ...(first !== undefined && { first }) };
  ops.rope(rt, columns.of, cos, sin, positions, turn);
}
