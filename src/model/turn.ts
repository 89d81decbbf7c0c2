import type { NativeRuntime } from '../../native/binding.js';
import { type AttentionParams, ops } from '../../native/ops.js';
import { firstOf } from './columns.js';
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
  if (!rotation) return;
  const { cos, sin, positions, rotary, style } = rotation;
  for (const [columns, count] of [[q, heads] as const, [k, kvHeads] as const]) {
    const first = firstOf(columns, count * headDim);
    const turn = { heads: count, headDim, rotary, style, ...(first !== undefined && { first }) };
    ops.rope(rt, columns.of, cos, sin, positions, turn);
  }
}
