import type { NativeRuntime } from '../../native/binding.js';
import { type AttentionParams, ops } from '../../native/ops.js';
import { firstOf } from './columns.js';
import type { AttentionTensors } from './program.js';

/** Turns q and k where they lie, where they are to be turned. */
export function rotate(
  rt: NativeRuntime,
  { q, k, rotation }: Pick<AttentionTensors, 'q' | 'k' | 'rotation'>,
  { heads, kvHeads, headDim }: Pick<AttentionParams, 'heads' | 'kvHeads' | 'headDim'>,
): void {
  if (!rotation) return;
  const { cos, sin, positions, rotary, style } = rotation;
  for (const [columns, count] of [[q, heads] as const, [k, kvHeads] as const]) {
    const first = firstOf(columns, count * headDim);
    const turn = { heads: count, headDim, rotary, style, ...(first !== undefined && { first }) };
    ops.rope(rt, columns.of, cos, sin, positions, turn);
  }
}
