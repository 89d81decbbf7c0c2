import type { NativeRuntime, Tensor } from '../../native/binding.js';
import type { CacheStep } from '../../native/cache-ops.js';
import { type AttentionParams, ops } from '../../native/ops.js';
import type { IndexerPlan, SharedIndexerPlan } from './plan-indexer.js';
import type { BlockState, BlockWeights } from './program.js';
import type { RopeCache } from './rope-cache.js';
import { applyLinear, applyNorm, linearTensors, normTensors, weightOf } from './weights.js';

/** The keys that tokens see: `indices` I32 [T, choices * top] as ops.selectedAttention reads them. */
export interface Selection {
  readonly indices: Tensor;
  readonly choices: number;
  readonly block: number;
}

/** Where what an indexer chose waits for the blocks behind it. */
const SELECTED = 'selected';

export function indexerTensors(plan: IndexerPlan | SharedIndexerPlan | undefined): [string, readonly number[]][] {
  if (plan?.kind !== 'own') return [];
  const { q, k, weights, qNorm, kNorm } = plan;
  return [...[q, k, ...(weights ? [weights] : [])].flatMap(linearTensors), ...[qNorm, kNorm].flatMap(normTensors)];
}

/** What an indexer makes of the input of attention x [T,C]: a key f32 [T, dim] and, where it has them, weights f32 [T, heads]. */
export interface IndexInputs {
  readonly indexKey: Tensor;
  readonly indexWeights?: Tensor;
}

export function indexInputs(rt: NativeRuntime, weights: BlockWeights, plan: IndexerPlan, x: Tensor): IndexInputs {
  return {
    indexKey: applyLinear(rt, weights, plan.k, x),
    ...(plan.weights && { indexWeights: applyLinear(rt, weights, plan.weights, x) }),
  };
}

/**
 * What the tokens of a batch see; undefined where that is all before them. `read` [T, ...]: what the indexer's queries are made of;
 * it and the inputs stay the caller's, and so does the state. The caller hands the selection to handOn().
 */
export function select(
  rt: NativeRuntime,
  weights: BlockWeights,
  plan: IndexerPlan | SharedIndexerPlan,
  { read, indexKey, indexWeights }: IndexInputs & { readonly read: Tensor },
  state: BlockState,
  ropes: RopeCache,
): Selection | undefined {
  const { batch, rows, carried = {} } = state;
  const { top, block } = plan;
  const everything = batch.longest <= top * block;
  if (plan.kind === 'shared') {
    if (everything) return undefined;
    const indices = weightOf(new Map(Object.entries(carried)), SELECTED);
    return { indices: indices.view(indices.shape), choices: 1, block };
  }
  // Keys are kept for later tokens even where this step's see everything.
  if (everything && !rows) return undefined;
  const { heads, dim, local, qNorm, kNorm } = plan;
  const q = applyLinear(rt, weights, plan.q, read);
  const k = rt.allocate('f32', indexKey.shape);
  ops.cast(rt, indexKey, k);
  const perHead = q.view([batch.tokens * heads, dim]);
  if (qNorm) applyNorm(rt, weights, qNorm, perHead, true);
  applyNorm(rt, weights, kNorm, k, true);
  const { cos, sin, positions, rotary, style } = ropes.forBatch(rt, plan.rope, batch);
  for (const [x, count] of [[q, heads] as const, [k, 1] as const])
    ops.rope(rt, x, cos, sin, positions, { heads: count, headDim: dim, rotary, style });
  const choices = indexWeights ? 1 : heads;
  const indices = rt.allocate('i32', [batch.tokens, choices * top]);
  const past = rows ? rows('index', dim) : { starts: batch.starts };
  ops.indexKeys(rt, { q, k, weights: indexWeights }, indices, past, { heads, top, block, local });
  for (const tensor of [perHead, q, k]) tensor.dispose();
  if (!everything) return { indices, choices, block };
  indices.dispose();
  return undefined;
}

/** The state with a selection for the blocks behind, where they see it, too; lets go of what is not needed again. */
export function handOn(
  plan: IndexerPlan | SharedIndexerPlan,
  selection: Selection | undefined,
  state: BlockState,
): BlockState {
  if (!selection) return state;
  const { [SELECTED]: before, ...rest } = state.carried ?? {};
  if (plan.kind === 'shared') {
    selection.indices.dispose();
    if (plan.kept) return state;
  }
  before?.dispose();
  if (plan.kind === 'own' && plan.kept) return { ...state, carried: { ...rest, [SELECTED]: selection.indices } };
  if (plan.kind === 'own') selection.indices.dispose();
  return before ? { ...state, carried: rest } : state;
}

/** y = attention of q over the selected keys: of the batch's tokens, or of all that a step's sequences keep; q and y of any activation dtype. */
export function attendSelected(
  rt: NativeRuntime,
  { q, k, v, y }: Record<'q' | 'k' | 'v' | 'y', Tensor>,
  { indices, choices, block }: Selection,
  { starts, slots, totals }: Pick<CacheStep, 'starts'> & Partial<CacheStep>,
  { heads, kvHeads, headDim, valueDim = headDim, scale }: AttentionParams,
): void {
  const shape = { heads, kvHeads, headDim, valueDim, scale, choices, block };
  const step = slots && totals ? { starts, slots, totals } : { starts };
  const [queries, out] = [floats(rt, q), y.dtype === 'f32' ? y.view(y.shape) : rt.allocate('f32', y.shape)];
  ops.selectedAttention(rt, { q: queries, k, v, selected: indices }, out, step, shape);
  if (y.dtype !== 'f32') ops.cast(rt, out, y);
  for (const tensor of [queries, out]) tensor.dispose();
}

/** x in f32: a new tensor, or a view of x. */
function floats(rt: NativeRuntime, x: Tensor): Tensor {
  if (x.dtype === 'f32') return x.view(x.shape);
  const y = rt.allocate('f32', x.shape);
  ops.cast(rt, x, y);
  return y;
}
