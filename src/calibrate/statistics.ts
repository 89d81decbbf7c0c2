import { type NativeRuntime, readTyped, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import type { Feed, Stage } from '../model/program.js';
import type { Room } from './room.js';
import type { ActivationStream, Step } from './streams.js';

/** Second moments of one activation: what all linears that read it share. */
export interface FeedStatistics {
  /** H = sum over rows of xq xqᵀ, [K,K] in the runtime's moment dtype, of the inputs that the quantized model really sees. Every token weighs the same. */
  readonly h: Tensor;
  /**
   * D = sum (xf - xq) xqᵀ, of that dtype, xf from the unquantized model, over the rows of which both are known, times
   * all rows / those rows; absent where rows cannot be matched (experts).
   */
  readonly drift?: Tensor;
  /** Rows summed; fewer than the tokens for an expert, possibly 0. */
  readonly tokens: number;
}

/** The calibration data of one device: through the quantized model and, for the first of its batches, through the original. */
export interface Streams {
  readonly quantized: ActivationStream;
  readonly original: ActivationStream | undefined;
  /** All rows over those of `original`. */
  readonly driftScale: number;
}

/** A stage and the weights of both models. */
export interface Capture {
  readonly stage: Stage;
  readonly quantized: Step['weights'];
  readonly original: Step['weights'];
}

type Sums = Map<string, { h: Tensor; drift?: Tensor; tokens: number }>;

/** Batches in flight: one computes while JavaScript prepares the next; temporaries of all of them take memory. */
const IN_FLIGHT = { cpu: 1, device: 2 };

/**
 * Sweeps over all batches: both streams pass what is pending, and the inputs of the stage's `feeds` are summed up. With an
 * original stream, feeds whose rows are the batch's tokens also get D. Throws LPQ_MODULE_NUMERICS naming the linears when
 * their input holds NaN or infinity. The caller disposes of the result.
 */
export async function sweepStatistics(
  rt: NativeRuntime,
  streams: Streams,
  capture: Capture,
  feeds: ReadonlySet<string>,
  room: Room,
): Promise<Map<string, FeedStatistics>> {
  const { quantized, original } = streams;
  const { stage } = capture;
  const sums: Sums = new Map();
  for (const { id, linears } of stage.feeds) {
    if (!feeds.has(id)) continue;
    const { k, expert } = linears[0] as Feed['linears'][number];
    const zeros = () => {
      const matrix = rt.allocate(rt.momentDtype, [k, k]);
      ops.zero(rt, matrix);
      return matrix;
    };
    const paired = original !== undefined && original.batches > 0 && expert === undefined;
    sums.set(id, { h: zeros(), ...(paired && { drift: zeros() }), tokens: 0 });
  }
  const wanted = sums.size > 0;
  const flight: { captured: Map<string, Tensor>; twins: Map<string, Tensor>; done: Promise<void> }[] = [];
  const land = async (): Promise<void> => {
    const oldest = flight.shift();
    if (!oldest) return;
    try {
      await settled(rt, oldest.done, stage, sums, oldest.captured);
    } finally {
      for (const x of [...oldest.captured.values(), ...oldest.twins.values()]) x.dispose();
    }
  };
  try {
    const paired = original?.batches ?? 0;
    for (let batch = 0; batch < quantized.batches; batch++) {
      quantized.prefetch(batch + 1);
      if (batch + 1 < paired) original?.prefetch(batch + 1);
      const step = wanted ? { stage, weights: capture.quantized } : undefined;
      const captured = await quantized.visit(batch, room, step);
      const twins =
        original && batch < paired
          ? await original.visit(batch, room, wanted ? { stage, weights: capture.original } : undefined)
          : new Map<string, Tensor>();
      for (const [id, x] of captured) {
        const sum = sums.get(id);
        const rows = x.shape[0] as number;
        if (!sum || rows === 0) continue;
        sum.tokens += rows;
        ops.gramAccumulate(rt, x, sum.h);
        const twin = twins.get(id);
        if (sum.drift && twin) ops.crossAccumulate(rt, twin, x, sum.drift);
      }
      if (batch === paired - 1)
        for (const { h, drift } of sums.values())
          if (drift) ops.crossDrift(rt, h, drift, { scale: streams.driftScale });
      flight.push({ captured, twins, done: rt.mark() });
      if (flight.length >= IN_FLIGHT[rt.device === 'cpu' ? 'cpu' : 'device']) await land();
    }
    while (flight.length > 0) await land();
    for (const { h } of sums.values()) ops.gramFinish(rt, h);
    quantized.finish();
    original?.finish();
    await settled(rt, rt.sync(), stage, sums, new Map());
  } catch (error) {
    for (const { done } of flight) done.catch(() => {});
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

/** A device tells of bad data when it is asked only. */
async function settled(
  rt: NativeRuntime,
  done: Promise<void>,
  stage: Stage,
  sums: Sums,
  captured: ReadonlyMap<string, Tensor>,
): Promise<void> {
  try {
    await done;
  } catch (cause) {
    if ((cause as { code?: string }).code !== 'LPQ_NATIVE_NUMERICS') throw cause;
    throw await notFinite(rt, stage, sums, captured, cause);
  }
}

async function notFinite(
  rt: NativeRuntime,
  stage: Stage,
  sums: Sums,
  captured: ReadonlyMap<string, Tensor>,
  cause: unknown,
): Promise<LpqError> {
  await rt.sync().catch(() => {}); // it tells of the failure once more, and then computes again
  let broken = stage.feeds[0] as Feed;
  for (const feed of stage.feeds) {
    const x = captured.get(feed.id);
    const h = sums.get(feed.id)?.h;
    if ((x && !(await allFinite(rt, x))) || (h && !(await finiteDiagonal(rt, h)))) {
      broken = feed;
      break;
    }
  }
  const names = broken.linears.map((linear) => linear.name).join(', ');
  return new LpqError('LPQ_MODULE_NUMERICS', `the input of ${names} holds NaN or infinity`, {
    cause,
    hint: 'Look for NaN in the weights of this block and the previous one, or skip these modules.',
  });
}

async function allFinite(rt: NativeRuntime, x: Tensor): Promise<boolean> {
  if (x.dtype === 'f32') return (await readTyped(rt, x)).every(Number.isFinite);
  const exponent = x.dtype === 'bf16' ? 0x7f80 : 0x7c00; // all ones: NaN or infinity
  return (await readTyped<Uint16Array>(rt, x)).every((bits) => (bits & exponent) !== exponent);
}

async function finiteDiagonal(rt: NativeRuntime, h: Tensor): Promise<boolean> {
  const diagonal = rt.allocate('f64', [h.shape[0] as number]);
  ops.diagonal(rt, h, diagonal);
  try {
    return (await readTyped<Float64Array>(rt, diagonal)).every(Number.isFinite);
  } finally {
    diagonal.dispose();
  }
}
