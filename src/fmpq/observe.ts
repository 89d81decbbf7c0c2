import { type NativeRuntime, readTyped, type Tensor, uploadTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import type { BlockWeights, LinearRef, ModelGraph, Stage } from '../model/program.js';
import type { WeightSource } from '../model/source.js';
import { headBlock, type PassLane, passModel } from '../quantize/pass.js';

/** What one input of linears looks like over the calibration set, in the unquantized model. */
export interface ObservedFeed {
  readonly linears: readonly LinearRef[];
  readonly k: number;
  /** f32 [R,K] on the host: rows taken evenly out of every batch; R may be 0 for an expert that saw none. */
  readonly rows: Tensor;
  /** Over all rows: the largest magnitude and the sum of squares of each channel. */
  readonly most: Float32Array;
  readonly moments: Float64Array;
  readonly tokens: number;
  /**
   * [K]: what a squared error of the channel adds to the relative squared error of the linears' outputs, summed over the
   * linears: sum_n W[n][k]^2 / (mean over the rows of |W x|^2) / R.
   */
  readonly importance: Float32Array;
}

interface Tally {
  readonly linears: readonly LinearRef[];
  /** Rows in the runtime's activation dtype. */
  readonly parts: Tensor[];
  readonly most: Tensor;
  readonly moments: Tensor;
  tokens: number;
}

/**
 * Statistics of every input that one of `wanted` reads, by one forward pass. `rows`: wanted rows of each. Throws
 * LPQ_MODULE_NUMERICS where an input is not finite. The caller disposes of the feeds (disposeFeeds).
 */
export async function observeFeeds(
  rt: NativeRuntime,
  source: WeightSource,
  graph: ModelGraph,
  sequences: readonly Int32Array[],
  wanted: ReadonlySet<string>,
  rows: number,
  onBlock: (block: number) => void = () => {},
): Promise<ObservedFeed[]> {
  const walk = wanted.has(graph.head.name) ? [...graph.blocks, headBlock(graph)] : graph.blocks;
  const feeds: ObservedFeed[] = [];
  try {
    await passModel([rt], sequences, source, graph, walk, async (block, stage, [lane]) => {
      if (stage === block.stages[0] && block.index < graph.blocks.length) onBlock(block.index);
      feeds.push(...(await observeStage(lane as PassLane, stage, wanted, rows)));
    });
    return feeds;
  } catch (error) {
    disposeFeeds(feeds);
    throw error;
  }
}

export function disposeFeeds(feeds: readonly ObservedFeed[]): void {
  for (const { rows } of feeds) rows.dispose();
}

/** One sweep of the calibration data in front of a stage. */
async function observeStage(
  { rt, streams: { quantized: stream }, weights, room }: PassLane,
  stage: Stage,
  wanted: ReadonlySet<string>,
  rows: number,
): Promise<ObservedFeed[]> {
  const seen = stage.feeds.flatMap(({ id, linears }) => {
    const read = linears.filter(({ name }) => wanted.has(name));
    return read.length > 0 ? [{ id, linears: read }] : [];
  });
  const tallies = new Map<string, Tally>();
  const perBatch = Math.max(1, Math.ceil(rows / stream.batches));
  const feeds: ObservedFeed[] = [];
  try {
    for (let batch = 0; batch < stream.batches; batch++) {
      stream.prefetch(batch + 1);
      const captured = await stream.visit(batch, room, seen.length > 0 ? { stage, weights } : undefined);
      try {
        for (const { id, linears } of seen) {
          const x = captured.get(id);
          if (!x) continue;
          const tally = tallies.get(id) ?? emptyTally(rt, linears, x.shape[1] as number);
          tallies.set(id, tally);
          look(rt, x, tally, perBatch);
        }
        await finite(rt, stage);
      } finally {
        for (const x of captured.values()) x.dispose();
      }
    }
    stream.finish();
    for (const tally of tallies.values()) feeds.push(await finish(rt, tally, weights));
    return feeds;
  } catch (error) {
    disposeFeeds(feeds);
    throw error;
  } finally {
    for (const { most, moments, parts } of tallies.values())
      for (const tensor of [most, moments, ...parts]) tensor.dispose();
  }
}

/** Adds rows to what is known of an input. */
function look(rt: NativeRuntime, x: Tensor, tally: Tally, perBatch: number): void {
  const [count, k] = x.shape as [number, number];
  if (count === 0) return;
  tally.tokens += count;
  ops.channelStatistics(rt, x, tally.most, tally.moments);
  const taken = Math.min(count, perBatch);
  const indices = Int32Array.from({ length: taken }, (_, i) => Math.floor(((i + 0.5) * count) / taken));
  const index = uploadTyped(rt, 'i32', [taken], indices);
  const part = rt.allocate(x.dtype, [taken, k]);
  ops.gatherRows(rt, x, index, part);
  index.dispose();
  tally.parts.push(part);
}

/** Waits for what was enqueued. Throws LPQ_MODULE_NUMERICS. */
async function finite(rt: NativeRuntime, stage: Stage): Promise<void> {
  try {
    await rt.sync();
  } catch (cause) {
    if ((cause as { code?: string }).code !== 'LPQ_NATIVE_NUMERICS') throw cause;
    const names = stage.feeds.flatMap(({ linears }) => linears.map(({ name }) => name)).join(', ');
    throw new LpqError('LPQ_MODULE_NUMERICS', `the input of one of ${names} holds NaN or infinity`, {
      cause,
      hint: 'Look for NaN in the weights of this block and the previous one, or skip these modules.',
    });
  }
}

function emptyTally(rt: NativeRuntime, linears: readonly LinearRef[], k: number): Tally {
  const most = rt.allocate('f32', [k]);
  const moments = rt.allocate('f64', [k]);
  for (const tensor of [most, moments]) ops.zero(rt, tensor);
  return { linears, parts: [], most, moments, tokens: 0 };
}

async function finish(rt: NativeRuntime, tally: Tally, weights: BlockWeights): Promise<ObservedFeed> {
  const { linears, tokens } = tally;
  const k = linears[0]?.k as number;
  const rows = stacked(rt, tally.parts, k);
  const wide = rt.allocate('f32', rows.shape);
  try {
    const importance = new Float32Array(k);
    for (const linear of linears) {
      const weight = weights.get(`${linear.name}.weight`) as Tensor;
      const energy = await outputEnergy(rt, rows, weight, linear.n);
      const squares = await columnSquares(rt, weight);
      if (energy > 0)
        for (let c = 0; c < k; c++) importance[c] = (importance[c] as number) + (squares[c] as number) / energy;
    }
    const [most, moments] = [await readTyped(rt, tally.most), await readTyped<Float64Array>(rt, tally.moments)];
    ops.cast(rt, rows, wide);
    return { linears, k, rows: await rt.download(wide), most, moments, tokens, importance };
  } finally {
    for (const tensor of [rows, wide]) tensor.dispose();
  }
}

/** Matrices with k columns, one under another. */
function stacked(rt: NativeRuntime, parts: readonly Tensor[], k: number): Tensor {
  const count = parts.reduce((sum, part) => sum + (part.shape[0] as number), 0);
  const rows = rt.allocate(parts[0]?.dtype ?? rt.activationDtype, [count, k]);
  let at = 0;
  for (const part of parts) {
    const place = rows.view(part.shape, at * k);
    ops.cast(rt, part, place);
    at += part.shape[0] as number;
    place.dispose();
  }
  return rows;
}

/** Sum over rows of |W x|^2. */
async function outputEnergy(rt: NativeRuntime, rows: Tensor, weight: Tensor, n: number): Promise<number> {
  if (rows.shape[0] === 0) return 0;
  const y = rt.allocate('f32', [rows.shape[0] as number, n]);
  ops.linear(rt, rows, weight, undefined, y);
  const sums = await columnSquares(rt, y);
  y.dispose();
  return sums.reduce((sum, one) => sum + one, 0);
}

/** Sums of squares down the columns of a matrix. */
async function columnSquares(rt: NativeRuntime, matrix: Tensor): Promise<Float64Array> {
  const width = matrix.shape[1] as number;
  const asIs = matrix.dtype === 'f32' || rt.device !== 'cpu';
  const read = asIs ? matrix.view(matrix.shape) : rt.allocate('f32', matrix.shape);
  const most = rt.allocate('f32', [width]);
  const sums = rt.allocate('f64', [width]);
  if (!asIs) ops.cast(rt, matrix, read);
  for (const tensor of [most, sums]) ops.zero(rt, tensor);
  ops.channelStatistics(rt, read, most, sums);
  const result = await readTyped<Float64Array>(rt, sums);
  for (const tensor of [read, most, sums]) tensor.dispose();
  return result;
}
