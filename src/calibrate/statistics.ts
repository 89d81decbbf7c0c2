import { allocate, type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import type { BlockState, BlockWeights, Feed, Stage } from '../model/program.js';

/** What the quantizer knows of the inputs of a feed's linears. */
export interface FeedStatistics {
  /** H = sum over rows of xᵀx, f64 [K,K], not divided by anything: every token weighs the same. */
  readonly hessian: Tensor;
  /** Rows summed; fewer than the tokens for an expert, possibly 0. */
  readonly rows: number;
}

/**
 * Hessians of the feeds of a stage over all batches, whose states stand before that stage and stay as they are.
 * `feeds` limits the work to some of the stage's feed ids (memory: K*K*8 bytes each). Throws LPQ_MODULE_NUMERICS
 * naming the linears when their input holds NaN or infinity. The caller disposes of the result with disposeStatistics.
 */
export async function stageStatistics(
  rt: NativeRuntime,
  stage: Stage,
  weights: BlockWeights,
  states: readonly BlockState[],
  feeds: ReadonlySet<string> = new Set(stage.feeds.map((feed) => feed.id)),
): Promise<Map<string, FeedStatistics>> {
  const sums = new Map<string, { hessian: Tensor; rows: number }>();
  for (const { id, linears } of stage.feeds) {
    if (!feeds.has(id)) continue;
    const k = (linears[0] as Feed['linears'][number]).k;
    const hessian = allocate('f64', [k, k]);
    ops.zero(rt, hessian);
    sums.set(id, { hessian, rows: 0 });
  }
  try {
    for (const state of states) {
      const captured = await stage.capture(rt, weights, state);
      for (const [id, x] of captured) {
        const sum = sums.get(id);
        const rows = x.shape[0] as number;
        if (!sum || rows === 0) continue;
        sum.rows += rows;
        ops.gramAccumulate(rt, x, sum.hessian);
      }
      try {
        await rt.sync();
      } catch (cause) {
        throw (cause as { code?: string }).code === 'LPQ_NATIVE_NUMERICS' ? notFinite(stage, captured, cause) : cause;
      } finally {
        for (const x of captured.values()) x.dispose();
      }
    }
  } catch (error) {
    disposeStatistics(sums);
    throw error;
  }
  return sums;
}

export function disposeStatistics(statistics: ReadonlyMap<string, FeedStatistics>): void {
  for (const { hessian } of statistics.values()) hessian.dispose();
}

/** Takes every batch through one stage, replacing the states; memory stays at one batch's temporaries. */
export async function advanceStage(
  rt: NativeRuntime,
  stage: Stage,
  weights: BlockWeights,
  states: BlockState[],
): Promise<void> {
  for (let i = 0; i < states.length; i++) {
    states[i] = await stage.advance(rt, weights, states[i] as BlockState);
    await rt.sync();
  }
}

function notFinite(stage: Stage, captured: ReadonlyMap<string, Tensor>, cause: unknown): LpqError {
  const broken = stage.feeds.find(({ id }) => {
    const x = captured.get(id);
    return x && !typed(x).every(Number.isFinite);
  });
  const names = (broken ?? (stage.feeds[0] as Feed)).linears.map((linear) => linear.name).join(', ');
  return new LpqError('LPQ_MODULE_NUMERICS', `the input of ${names} holds NaN or infinity`, {
    cause,
    hint: 'Look for NaN in the weights of this block and the one before, or leave these modules out.',
  });
}
