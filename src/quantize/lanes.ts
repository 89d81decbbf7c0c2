import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { FeedStatistics, Streams } from '../calibrate/statistics.js';
import type { BlockWeights, Feed, LinearRef } from '../model/program.js';
import type { QuantScheme } from './scheme.js';
import { siblingRuns } from './siblings.js';

/** One device at work on a block: its share of the calibration data, and the weights of both models. */
export interface Lane {
  readonly rt: NativeRuntime;
  readonly streams: Streams;
  readonly source: BlockWeights;
  /** Quantized as far as the block is solved. */
  readonly current: BlockWeights;
}

/** Waits for all, also when one fails, so that nothing is in use any more when the first failure is thrown. */
export async function together<T>(parts: readonly Promise<T>[]): Promise<T[]> {
  const outcomes = await Promise.allSettled(parts);
  const failed = outcomes.find((outcome) => outcome.status === 'rejected');
  if (failed) throw failed.reason;
  return outcomes.map((outcome) => (outcome as PromiseFulfilledResult<T>).value);
}

/** Rows [first, first + rows) of a linear: rows are quantized independently of each other. */
export interface Part {
  readonly linear: LinearRef;
  readonly first: number;
  readonly rows: number;
}

/** What one device quantizes of a feed. */
export interface Share {
  readonly feed: Feed;
  readonly parts: readonly Part[];
}

/** Rows are cut at multiples of this: products of fewer rows leave multiprocessors idle, and cuBLAS has other kernels for them. */
const CUT_ROWS = 1024;

/**
 * Shares feeds out over `count` devices, in model order on each. Where there are enough of them, whole, the costly ones
 * first, each to the device with the least to do. Else the rows of every feed, its linears one under another, are cut in
 * as many runs as there are devices, each of which then factors the Hessian; linears with a second level of scales, which
 * looks at all rows, go whole to the device that has the middle of the first of them, siblings that share it together.
 */
export function shareOut(
  feeds: readonly Feed[],
  count: number,
  schemeOf: (linear: LinearRef) => QuantScheme | undefined,
): Share[][] {
  const whole = (feed: Feed): Share => ({
    feed,
    parts: feed.linears.map((linear) => ({ linear, first: 0, rows: linear.n })),
  });
  if (count === 1) return [feeds.map(whole)];
  if (feeds.length < count) {
    const shares = feeds.map((feed) => cutRows(feed, count, schemeOf));
    return Array.from({ length: count }, (_, device) =>
      shares.map((share) => share[device] as Share).filter(({ parts }) => parts.length > 0),
    );
  }
  const cost = ({ linears }: Feed) => {
    const { k } = linears[0] as LinearRef;
    // A factorisation is worth about 2 K rows of a walk (native/cuda/gptq; measured on an H200).
    return k * k * (2 * k + linears.reduce((sum, { n }) => sum + n, 0));
  };
  const load = new Array<number>(count).fill(0);
  const owner = new Map<Feed, number>();
  for (const feed of [...feeds].sort((a, b) => cost(b) - cost(a))) {
    const least = load.indexOf(Math.min(...load));
    owner.set(feed, least);
    load[least] = (load[least] as number) + cost(feed);
  }
  return Array.from({ length: count }, (_, device) => feeds.filter((feed) => owner.get(feed) === device).map(whole));
}

function cutRows(feed: Feed, count: number, schemeOf: (linear: LinearRef) => QuantScheme | undefined): Share[] {
  const total = feed.linears.reduce((sum, { n }) => sum + n, 0);
  const shares = Array.from({ length: count }, (): Part[] => []);
  const together = new Map<LinearRef, LinearRef>();
  for (const run of siblingRuns(feed.linears, schemeOf))
    for (const linear of run) together.set(linear, run[0] as LinearRef);
  const owner = new Map<LinearRef, number>();
  let before = 0;
  for (const linear of feed.linears) {
    const { n } = linear;
    if (schemeOf(linear)?.globalScale) {
      const first = together.get(linear) as LinearRef;
      const device = owner.get(first) ?? Math.floor(((before + n / 2) * count) / total);
      owner.set(first, device);
      shares[device]?.push({ linear, first: 0, rows: n });
    } else {
      const cut = (device: number) => {
        const row = Math.floor((device * total) / count) - before;
        return Math.min(n, Math.max(0, device === count ? n : Math.round(row / CUT_ROWS) * CUT_ROWS));
      };
      for (const [device, parts] of shares.entries()) {
        const [first, end] = [cut(device), cut(device + 1)];
        if (end > first) parts.push({ linear, first, rows: end - first });
      }
    }
    before += n;
  }
  return shares.map((parts) => ({ feed, parts }));
}

/** What the devices have summed up of a stage: one map a device, or more where sections stay apart. */
export type Swept = readonly (readonly ReadonlyMap<string, FeedStatistics>[])[];

/** The statistics of one feed on the only device, which has added all sections. Of several, they are gathered where they are needed. */
export function onlySum(swept: Swept, id: string): FeedStatistics | undefined {
  return swept.length === 1 ? swept[0]?.[0]?.get(id) : undefined;
}

/**
 * The statistics of one feed over all devices, summed on one of them in the order of the sections, so that each of them
 * gets the same sum. The runtimes that hold them must have been synced. The caller disposes of the result.
 */
export async function gatherStatistics(swept: Swept, id: string, home: NativeRuntime): Promise<FeedStatistics> {
  const parts = swept.flat().map((each) => each.get(id) as FeedStatistics);
  const sum = async (pick: (part: FeedStatistics) => Tensor | undefined): Promise<Tensor | undefined> => {
    const tensors = parts.map(pick).filter((tensor) => tensor !== undefined);
    let total: Tensor | undefined;
    for (const tensor of tensors) {
      const here = home.copyFrom(tensor); // a view where it is at hand: sums go elsewhere
      if (total) {
        const next: Tensor = home.allocate(here.dtype, here.shape);
        ops.add(home, total, here, next);
        total.dispose();
        here.dispose();
        total = next;
      } else total = here;
    }
    await home.sync();
    return total;
  };
  const h = (await sum(({ h }) => h)) as Tensor;
  const drift = await sum(({ drift }) => drift);
  return { h, ...(drift && { drift }), tokens: parts.reduce((total, { tokens }) => total + tokens, 0) };
}

/** Dequantized rows of a linear's weight on the lane that quantized them. */
export interface Replacement {
  readonly part: Part;
  readonly weight: Tensor;
}

/**
 * Puts what the lanes quantized (replaced[i] by lanes[i]) into every lane's current weights. Takes the replacements over;
 * returns the weights, for their disposal.
 */
export async function distribute(
  lanes: readonly Lane[],
  replaced: readonly (readonly Replacement[])[],
): Promise<Tensor[]> {
  const all = replaced.flatMap((each, from) => each.map((one) => ({ ...one, from })));
  if (lanes.length > 1) await together(lanes.map(({ rt }) => rt.sync()));
  const made: Tensor[] = [];
  for (const [to, { rt, current }] of lanes.entries())
    for (const { part, weight, from } of all) {
      const { linear, first, rows } = part;
      const name = `${linear.name}.weight`;
      const here = to === from ? weight.view(weight.shape) : rt.copyFrom(weight);
      if (rows === linear.n) {
        made.push(here);
        current.set(name, here);
        continue;
      }
      if (first === 0) {
        const whole = rt.allocate(weight.dtype, [linear.n, linear.k]);
        made.push(whole);
        current.set(name, whole);
      }
      const rowsOf = (current.get(name) as Tensor).view([rows, linear.k], first * linear.k);
      ops.cast(rt, here, rowsOf);
      for (const tensor of [rowsOf, here]) tensor.dispose();
    }
  if (lanes.length > 1) await together(lanes.map(({ rt }) => rt.sync()));
  for (const { weight } of all) weight.dispose();
  return made;
}
