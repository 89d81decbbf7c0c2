import { fromTyped, type NativeRuntime, readTyped, type Tensor, uploadTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import { batchSequences, disposeBatch, type TokenBatch } from '../model/batch.js';
import { disposeStates, embedBatches, loadOuter } from '../model/forward.js';
import type { BlockState, BlockWeights, LinearRef, ModelGraph, Stage } from '../model/program.js';
import type { WeightSource } from '../model/source.js';
import { disposeWeights, loadWeights } from '../model/weights.js';
import { headStage } from '../quantize/calibrated.js';

/** What one input of linears looks like over the calibration set, in the unquantized model. */
export interface ObservedFeed {
  readonly linears: readonly LinearRef[];
  readonly k: number;
  /** f32 [R,K]: rows taken evenly out of every batch; R may be 0 for an expert that saw none. */
  readonly rows: Tensor;
  /** Over all rows: the largest magnitude and the sum of squares of each channel. */
  readonly most: Float32Array;
  readonly moments: Float64Array;
  readonly tokens: number;
  /**
   * f32 [K]: what a squared error of the channel adds to the relative squared error of the linears' outputs, summed over the
   * linears: sum_n W[n][k]^2 / (mean over the rows of |W x|^2) / R.
   */
  readonly importance: Tensor;
}

interface Tally {
  readonly linears: readonly LinearRef[];
  readonly parts: Tensor[];
  readonly most: Tensor;
  readonly moments: Tensor;
  tokens: number;
}

const BATCH_TOKENS = 4096;

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
  const outer = await loadOuter(rt, source, graph);
  const batches = batchSequences(rt, sequences, BATCH_TOKENS);
  const perBatch = Math.max(1, Math.ceil(rows / batches.length));
  const states: BlockState[] = [];
  const feeds: ObservedFeed[] = [];
  try {
    states.push(...embedBatches(rt, graph, outer, batches));
    for (const block of graph.blocks) {
      onBlock(block.index);
      const weights = await loadWeights(rt, source, block.tensors.keys(), graph.transposed);
      const tallies = new Map<string, Tally>();
      try {
        for (let i = 0; i < states.length; i++) {
          let state = states[i] as BlockState;
          for (const stage of block.stages) {
            await look(rt, stage, weights, state, tallies, wanted, perBatch);
            state = await stage.advance(rt, weights, state);
          }
          states[i] = state;
        }
        for (const tally of tallies.values()) feeds.push(await finish(rt, tally, weights));
      } finally {
        disposeWeights(weights);
      }
    }
    if (wanted.has(graph.head.name)) {
      const tallies = new Map<string, Tally>();
      const stage = headStage(graph);
      for (const state of states) await look(rt, stage, outer, state, tallies, wanted, perBatch);
      for (const tally of tallies.values()) feeds.push(await finish(rt, tally, outer));
    }
    return feeds;
  } catch (error) {
    disposeFeeds(feeds);
    throw error;
  } finally {
    disposeStates(states);
    disposeWeights(outer);
    for (const batch of batches) disposeBatch(batch as TokenBatch);
  }
}

export function disposeFeeds(feeds: readonly ObservedFeed[]): void {
  for (const { rows, importance } of feeds) for (const tensor of [rows, importance]) tensor.dispose();
}

async function look(
  rt: NativeRuntime,
  stage: Stage,
  weights: BlockWeights,
  state: BlockState,
  tallies: Map<string, Tally>,
  wanted: ReadonlySet<string>,
  perBatch: number,
): Promise<void> {
  const captured = await stage.capture(rt, weights, state);
  try {
    for (const feed of stage.feeds) {
      const linears = feed.linears.filter(({ name }) => wanted.has(name));
      const x = captured.get(feed.id);
      if (linears.length === 0 || !x) continue;
      const [count, k] = x.shape as [number, number];
      const tally = tallies.get(feed.id) ?? emptyTally(rt, linears, k);
      tallies.set(feed.id, tally);
      if (count === 0) continue;
      tally.tokens += count;
      ops.channelStatistics(rt, x, tally.most, tally.moments);
      const taken = Math.min(count, perBatch);
      const indices = Int32Array.from({ length: taken }, (_, i) => Math.floor(((i + 0.5) * count) / taken));
      const index = uploadTyped(rt, 'i32', [taken], indices);
      const part = rt.allocate('f32', [taken, k]);
      ops.gatherRows(rt, x, index, part);
      index.dispose();
      tally.parts.push(part);
    }
    await rt.sync();
  } catch (cause) {
    if ((cause as { code?: string }).code !== 'LPQ_NATIVE_NUMERICS') throw cause;
    const names = stage.feeds.flatMap(({ linears }) => linears.map(({ name }) => name)).join(', ');
    throw new LpqError('LPQ_MODULE_NUMERICS', `the input of one of ${names} holds NaN or infinity`, {
      cause,
      hint: 'Look for NaN in the weights of this block and the previous one, or skip these modules.',
    });
  } finally {
    for (const x of captured.values()) x.dispose();
  }
}

function emptyTally(rt: NativeRuntime, linears: readonly LinearRef[], k: number): Tally {
  const most = rt.allocate('f32', [k]);
  const moments = rt.allocate('f64', [k]);
  for (const tensor of [most, moments]) ops.zero(rt, tensor);
  return { linears, parts: [], most, moments, tokens: 0 };
}

async function finish(rt: NativeRuntime, tally: Tally, weights: BlockWeights): Promise<ObservedFeed> {
  const { linears, parts, tokens } = tally;
  const k = linears[0]?.k as number;
  const count = parts.reduce((sum, part) => sum + (part.shape[0] as number), 0);
  const rows = rt.allocate('f32', [count, k]);
  let at = 0;
  for (const part of parts) {
    const place = rows.view(part.shape, at * k);
    ops.cast(rt, part, place);
    at += part.shape[0] as number;
    for (const tensor of [place, part]) tensor.dispose();
  }
  const importance = new Float32Array(k);
  for (const linear of linears) {
    const weight = weights.get(`${linear.name}.weight`) as Tensor;
    const energy = await outputEnergy(rt, rows, weight, linear.n);
    const squares = await columnSquares(rt, weight);
    if (energy > 0)
      for (let c = 0; c < k; c++) importance[c] = (importance[c] as number) + (squares[c] as number) / energy;
  }
  const [most, moments] = [await readTyped(rt, tally.most), await readTyped<Float64Array>(rt, tally.moments)];
  for (const tensor of [tally.most, tally.moments]) tensor.dispose();
  return { linears, k, rows, most, moments, tokens, importance: fromTyped('f32', [k], importance) };
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
  const wide = rt.allocate('f32', matrix.shape);
  const most = rt.allocate('f32', [width]);
  const sums = rt.allocate('f64', [width]);
  ops.cast(rt, matrix, wide);
  for (const tensor of [most, sums]) ops.zero(rt, tensor);
  ops.channelStatistics(rt, wide, most, sums);
  const result = await readTyped<Float64Array>(rt, sums);
  for (const tensor of [wide, most, sums]) tensor.dispose();
  return result;
}
