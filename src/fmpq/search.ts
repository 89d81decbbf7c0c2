import { type NativeRuntime, readTyped, type Tensor, typed, uploadTyped } from '../../native/binding.js';
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
  const sorted = Float64Array.from(errors).sort();
  if ('share' in allowance) {
    const kept = Math.max(1, Math.round(allowance.share * sorted.length));
    return sorted.subarray(0, kept).reduce((sum, error) => sum + error, 0);
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
      cost: cost(await blockErrors(rt, tables, order), allowance),
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
  const [from, picked] = [typed(feed.rows), new Float32Array(count * size)];
  for (let i = 0; i < count; i++) {
    const first = Math.floor(((i + 0.5) * all) / count) * feed.k + start;
    picked.set(from.subarray(first, first + size), i * size);
  }
  // As over all rows: importance is that of a sum over as many.
  const importance = feed.importance.slice(start, start + size).map((one) => (one * all) / Math.max(1, count));
  const rows = uploadTyped(rt, 'f32', [count, size], picked);
  return { rows, weight: uploadTyped(rt, 'f32', [size], importance), importance };
}

/** Errors at 4 bits of the blocks of `order`, one table's after another's. */
async function blockErrors(rt: NativeRuntime, tables: readonly Table[], order: Int32Array): Promise<Float64Array> {
  const blocks = order.length / BLOCK;
  const index = uploadTyped(rt, 'i32', [order.length], order);
  const errors = rt.allocate('f64', [tables.length * blocks, 1]);
  for (const [t, { rows, weight }] of tables.entries()) {
    const own = errors.view([blocks, 1], t * blocks);
    ops.blockErrors(rt, rows, weight, index, own, { bits: [4], clips: [CLIP] });
    own.dispose();
  }
  const found = await readTyped<Float64Array>(rt, errors);
  for (const tensor of [index, errors]) tensor.dispose();
  return found;
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
  const errors = await blockErrors(rt, tables, order);
  let best = cost(errors, allowance);
  for (let round = 0; round < SWAP_ROUNDS; round++) {
    const paired = [...random.shuffled(blocks)];
    const trial = order.slice();
    for (let p = 0; p + 1 < blocks; p += 2) {
      const [a, b] = [paired[p] as number, paired[p + 1] as number];
      const [i, j] = [a * BLOCK + random.below(BLOCK), b * BLOCK + random.below(BLOCK)];
      [trial[i], trial[j]] = [trial[j] as number, trial[i] as number];
    }
    const tried = await blockErrors(rt, tables, trial);
    for (let p = 0; p + 1 < blocks; p += 2) {
      const pair = [paired[p] as number, paired[p + 1] as number];
      const places = tables.flatMap((_, t) => pair.map((block) => t * blocks + block));
      const before = places.map((place) => errors[place] as number);
      for (const place of places) errors[place] = tried[place] as number;
      const total = cost(errors, allowance);
      if (total < best) {
        best = total;
        for (const block of pair) order.set(trial.subarray(block * BLOCK, (block + 1) * BLOCK), block * BLOCK);
      } else for (const [i, place] of places.entries()) errors[place] = before[i] as number;
    }
  }
  return best < from.cost ? { order, cost: best } : from;
}
