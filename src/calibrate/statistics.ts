import { type NativeRuntime, readTyped, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import type { Feed, Stage } from '../model/program.js';
import type { ActivationStream } from './streams.js';

/** Second moments of one activation: what all linears that read it share. */
export interface FeedStatistics {
  /** H = sum over rows of xq xqᵀ, [K,K] in the runtime's moment dtype, of the inputs that the quantized model really sees. Every token weighs the same. */
  readonly h: Tensor;
  /** D = sum (xf - xq) xqᵀ, of that dtype, xf from the unquantized model; absent where rows cannot be matched (experts). */
  readonly drift?: Tensor;
  /** Rows summed; fewer than the tokens for an expert, possibly 0. */
  readonly tokens: number;
}

/**
 * Statistics of the feeds of stage `index` over all batches; the streams stay where they are. With `original`, feeds
 * whose rows are the batch's tokens also get D. `feeds` limits the work (memory: K*K*8 bytes a matrix). Throws
 * LPQ_MODULE_NUMERICS naming the linears when their input holds NaN or infinity. The caller disposes of the result.
 */
export async function stageStatistics(
  rt: NativeRuntime,
  stage: Stage,
  index: number,
  stream: ActivationStream,
  original: ActivationStream | undefined,
  feeds: ReadonlySet<string> = new Set(stage.feeds.map((feed) => feed.id)),
): Promise<Map<string, FeedStatistics>> {
  const sums = new Map<string, { h: Tensor; drift?: Tensor; tokens: number }>();
  for (const { id, linears } of stage.feeds) {
    if (!feeds.has(id)) continue;
    const { k, expert } = linears[0] as Feed['linears'][number];
    const zeros = () => {
      const matrix = rt.allocate(rt.momentDtype, [k, k]);
      ops.zero(rt, matrix);
      return matrix;
    };
    sums.set(id, { h: zeros(), ...(original && expert === undefined && { drift: zeros() }), tokens: 0 });
  }
  const paired = [...sums.values()].some((sum) => sum.drift);
  try {
    for (let batch = 0; batch < stream.states.length; batch++) {
      const captured = await stream.capture(index, batch);
      const twins = paired && original ? await original.capture(index, batch) : undefined;
      for (const [id, x] of captured) {
        const sum = sums.get(id);
        const rows = x.shape[0] as number;
        if (!sum || rows === 0) continue;
        sum.tokens += rows;
        ops.gramAccumulate(rt, x, sum.h);
        const twin = twins?.get(id);
        if (sum.drift && twin) ops.crossAccumulate(rt, twin, x, sum.drift);
      }
      try {
        await rt.sync();
      } catch (cause) {
        throw (cause as { code?: string }).code === 'LPQ_NATIVE_NUMERICS'
          ? await notFinite(rt, stage, captured, cause)
          : cause;
      } finally {
        for (const x of [...captured.values(), ...(twins?.values() ?? [])]) x.dispose();
      }
    }
    for (const { h, drift } of sums.values()) {
      if (drift) ops.crossDrift(rt, h, drift);
      ops.gramFinish(rt, h);
    }
  } catch (error) {
    disposeStatistics(sums);
    throw error;
  }
  return sums;
}

export function disposeStatistics(statistics: ReadonlyMap<string, FeedStatistics>): void {
  for (const { h, drift } of statistics.values()) {
    h.dispose();
    drift?.dispose();
  }
}

async function notFinite(
  rt: NativeRuntime,
  stage: Stage,
  captured: ReadonlyMap<string, Tensor>,
  cause: unknown,
): Promise<LpqError> {
  let broken = stage.feeds[0] as Feed;
  for (const feed of stage.feeds) {
    const x = captured.get(feed.id);
    if (x && !(await allFinite(rt, x))) {
      broken = feed;
      break;
    }
  }
  const names = broken.linears.map((linear) => linear.name).join(', ');
  return new LpqError('LPQ_MODULE_NUMERICS', `the input of ${names} holds NaN or infinity`, {
    cause,
    hint: 'Look for NaN in the weights of this block and the one before, or leave these modules out.',
  });
}

async function allFinite(rt: NativeRuntime, x: Tensor): Promise<boolean> {
  if (x.dtype === 'f32') return (await readTyped(rt, x)).every(Number.isFinite);
  const exponent = x.dtype === 'bf16' ? 0x7f80 : 0x7c00; // all ones: NaN or infinity
  return (await readTyped<Uint16Array>(rt, x)).every((bits) => (bits & exponent) !== exponent);
}
