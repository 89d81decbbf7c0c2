import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { apart, type Columns } from './columns.js';
import type { AttentionPlan } from './plan.js';
import type { AttentionTensors, BlockState, BlockWeights } from './program.js';
import { weightOf } from './weights.js';

const keysOf = (block: number): string => `keys.${block}`;
const valuesOf = (block: number): string => `values.${block}`;

/** What a state carries a block's keys and values under. */
export function keptNames(block: number): readonly [keys: string, values: string] {
  return [keysOf(block), valuesOf(block)];
}

/** The state with a block's keys and values, turned and normalised, for the blocks that read them, too. */
export function withKept(
  rt: NativeRuntime,
  weights: BlockWeights,
  { kept, kvHeads, headDim, valueDim }: AttentionPlan,
  { k, v }: Pick<AttentionTensors, 'k' | 'v'>,
  state: BlockState,
): BlockState {
  // A cache has them already.
  if (kept === undefined || state.attend) return state;
  const own = (columns: Columns, width: number): Tensor => {
    const rows = apart(rt, columns, width);
    // What simulates a cache of few bits changes what it is given.
    if (!weights.kv) return rows;
    const copy = rt.allocate(rows.dtype, rows.shape);
    ops.cast(rt, rows, copy);
    rows.dispose();
    return copy;
  };
  const more = { [keysOf(kept)]: own(k, kvHeads * headDim), [valuesOf(kept)]: own(v, kvHeads * valueDim) };
  return { ...state, carried: { ...state.carried, ...more } };
}

/** The keys and values that another block kept, for attention that may change them only where it simulates a cache; the caller disposes of them. */
export function keptBy(
  rt: NativeRuntime,
  weights: BlockWeights,
  block: number,
  { carried }: BlockState,
): [Tensor, Tensor] {
  const tensors = new Map(Object.entries(carried ?? {}));
  return [keysOf(block), valuesOf(block)].map((name) => {
    const held = weightOf(tensors, name);
    if (!weights.kv) return held.view(held.shape);
    const copy = rt.allocate(held.dtype, held.shape);
    ops.cast(rt, held, copy);
    return copy;
  }) as [Tensor, Tensor];
}
