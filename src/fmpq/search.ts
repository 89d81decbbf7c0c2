import { fromTyped, type NativeRuntime, readTyped, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { Random } from '../calibrate/random.js';
import type { ObservedFeed } from './observe.js';
import { BLOCK, type SearchKind } from './options.js';

/** Columns start .. start + size of a feed, which are ordered by the permutation that is searched. */
export interface Reading {
  readonly feed: ObservedFeed;
  readonly start: number;
}

/** Which blocks may have 8 bits: a share of them, or those whose error at 4 bits is above a threshold. */
export type Allowance = { readonly share: number } | { readonly threshold: number };

/** What an order of channels is judged by: cost() of the errors at 4 bits that its blocks have. */
export interface Found {
  readonly order: Int32Array;
  readonly cost: number;
}

/** The clip that blocks are judged with before clips are chosen. */
const CLIP = 0.9;
/** Rows that the swaps are measured on, and rounds of them. */
const SWAP_ROWS = 256;
const SWAP_ROUNDS = 400;

/**
 * The objective. With a share s of 4-bit blocks: the total error of the blocks at 4 bits without those (1 - s) of them that
 * have most, which 8 bits make negligible. With a threshold: the number of blocks above it, and the errors of the others over
 * the threshold as a fraction that never reaches 1. Lower is better.
 */
export function cost(errors: ArrayLike<number>, allowance: Allowance): number {
  const sorted = Array.from(errors).sort((a, b) => a - b);
  if ('share' in allowance) {
    const kept = Math.max(1, Math.round(allowance.share * sorted.length));
    return sorted.slice(0, kept).reduce((sum, error) => sum + error, 0);
  }
  const below = sorted.filter((error) => error <= allowance.threshold);
  const rest = below.reduce((sum, error) => sum + error, 0);
  return sorted.length - below.length + rest / (allowance.threshold * (sorted.length + 1));
}

/**
 * Orders `size` channels that all readings share. `none` keeps them, `absmax` sorts by the largest magnitude (over the
 * reading's median, the largest of all readings), `error` by second moment times importance, `swap` exchanges channels between
 * blocks from the better of those, as long as the measured error falls. Never worse than keeping them, by its own measure.
 */
export async function searchOrder(
  rt: NativeRuntime,
  readings: readonly Reading[],
  size: number,
  kind: SearchKind,
  allowance: Allowance,
  seed: number,
): Promise<Found> {
  const kept = Int32Array.from({ length: size }, (_, i) => i);
  const tables = readings.map((reading) => tableOf(rt, reading, size));
  try {
    const judge = async (order: Int32Array): Promise<Found> => ({
      order,
      cost: cost((await Promise.all(tables.map((table) => blockErrors(rt, table, order)))).flat(), allowance),
    });
    let best = await judge(kept);
    if (kind === 'none' || size < 2 * BLOCK) return best;
    const kinds = kind === 'swap' ? (['absmax', 'error'] as const) : [kind];
    for (const each of kinds) {
      const scores = each === 'absmax' ? peaks(readings, size) : masses(readings, size, tables);
      const found = await judge(kept.slice().sort((a, b) => (scores[b] as number) - (scores[a] as number) || a - b));
      if (found.cost < best.cost) best = found;
    }
    return kind === 'swap' ? await swapped(rt, tables, best, allowance, seed) : best;
  } finally {
    for (const { rows, weight } of tables) for (const tensor of [rows, weight]) tensor.dispose();
  }
}

interface Table {
  /** f32 [R, size] and f32 [size]: the columns that are ordered. */
  readonly rows: Tensor;
  readonly weight: Tensor;
  readonly importance: Float32Array;
}

function tableOf(rt: NativeRuntime, { feed, start }: Reading, size: number): Table {
  const all = feed.rows.shape[0] as number;
  const count = Math.min(all, SWAP_ROWS);
  const index = fromTyped(
    'i32',
    [count],
    Int32Array.from({ length: count }, (_, i) => Math.floor(((i + 0.5) * all) / count)),
  );
  const picked = rt.allocate('f32', [count, feed.k]);
  ops.gatherRows(rt, feed.rows, index, picked);
  const rows = rt.allocate('f32', [count, size]);
  ops.sliceColumns(rt, picked, rows, { first: start });
  for (const tensor of [index, picked]) tensor.dispose();
  const importance = importanceOf(feed).slice(start, start + size);
  // As over all rows: importance is that of a sum over as many.
  const scaled = importance.map((one) => (one * all) / Math.max(1, count));
  return { rows, weight: fromTyped('f32', [size], scaled), importance: scaled };
}

export function importanceOf(feed: ObservedFeed): Float32Array {
  const bytes = feed.importance.bytes();
  return new Float32Array(bytes.slice().buffer);
}

/** Errors at 4 bits of the blocks of `order`, or of a part of an order. */
async function blockErrors(rt: NativeRuntime, { rows, weight }: Table, order: Int32Array): Promise<number[]> {
  const index = fromTyped('i32', [order.length], order);
  const errors = rt.allocate('f64', [order.length / BLOCK, 1]);
  ops.blockErrors(rt, rows, weight, index, errors, { bits: [4], clips: [CLIP] });
  const found = await readTyped<Float64Array>(rt, errors);
  for (const tensor of [index, errors]) tensor.dispose();
  return [...found];
}

function peaks(readings: readonly Reading[], size: number): Float64Array {
  const scores = new Float64Array(size);
  for (const { feed, start } of readings) {
    const most = feed.most.subarray(start, start + size);
    const middle = Math.max(Number.MIN_VALUE, [...most].sort((a, b) => a - b)[size >> 1] as number);
    for (let c = 0; c < size; c++) scores[c] = Math.max(scores[c] as number, (most[c] as number) / middle);
  }
  return scores;
}

function masses(readings: readonly Reading[], size: number, tables: readonly Table[]): Float64Array {
  const scores = new Float64Array(size);
  readings.forEach(({ feed, start }, r) => {
    const { importance } = tables[r] as Table;
    for (let c = 0; c < size; c++) {
      const mean = (feed.moments[start + c] as number) / Math.max(1, feed.tokens);
      scores[c] = (scores[c] as number) + mean * (importance[c] as number);
    }
  });
  return scores;
}

/**
 * Local search: each round pairs the blocks at random and tries one exchange in every pair, all pairs at once, for their
 * errors do not touch each other. An exchange stays where the objective falls.
 */
async function swapped(
  rt: NativeRuntime,
  tables: readonly Table[],
  from: Found,
  allowance: Allowance,
  seed: number,
): Promise<Found> {
  const random = new Random(seed);
  const order = from.order.slice();
  const blocks = order.length / BLOCK;
  const errors = await Promise.all(tables.map((table) => blockErrors(rt, table, order)));
  let best = cost(errors.flat(), allowance);
  for (let round = 0; round < SWAP_ROUNDS; round++) {
    const paired = [...random.shuffled(blocks)];
    const trial = order.slice();
    for (let p = 0; p + 1 < blocks; p += 2) {
      const [a, b] = [paired[p] as number, paired[p + 1] as number];
      const [i, j] = [a * BLOCK + random.below(BLOCK), b * BLOCK + random.below(BLOCK)];
      [trial[i], trial[j]] = [trial[j] as number, trial[i] as number];
    }
    const tried = await Promise.all(tables.map((table) => blockErrors(rt, table, trial)));
    for (let p = 0; p + 1 < blocks; p += 2) {
      const pair = [paired[p] as number, paired[p + 1] as number];
      const next = errors.map((each, t) =>
        each.map((error, block) => (pair.includes(block) ? (tried[t]?.[block] as number) : error)),
      );
      const total = cost(next.flat(), allowance);
      if (!(total < best)) continue;
      best = total;
      next.forEach((each, t) => {
        errors[t] = each;
      });
      for (const block of pair) order.set(trial.subarray(block * BLOCK, (block + 1) * BLOCK), block * BLOCK);
    }
  }
  return best < from.cost ? { order, cost: best } : from;
}
