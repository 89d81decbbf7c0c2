import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { FeedStatistics, Streams } from '../calibrate/statistics.js';
import type { BlockWeights, Feed, LinearRef } from '../model/program.js';

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

/**
 * Shares feeds out over `count` devices, the costly ones first, each to the device with the least to do. Where there are
 * fewer feeds than devices, linears of one feed may go to several: each of them then factors the Hessian. In model order
 * on every device.
 */
export function shareOut(feeds: readonly Feed[], count: number): Feed[][] {
  if (count === 1) return [[...feeds]];
  const whole = feeds.length >= count;
  const units = feeds.flatMap((feed) =>
    whole ? [feed] : feed.linears.map((linear) => ({ ...feed, linears: [linear] })),
  );
  const cost = ({ linears }: Feed) => {
    const { k } = linears[0] as LinearRef;
    // A factorisation is worth about 2 K rows of a walk (native/cuda/gptq; measured on an H200).
    return k * k * (2 * k + linears.reduce((sum, { n }) => sum + n, 0));
  };
  const load = new Array<number>(count).fill(0);
  const owner = new Map<Feed, number>();
  for (const unit of [...units].sort((a, b) => cost(b) - cost(a))) {
    const least = load.indexOf(Math.min(...load));
    owner.set(unit, least);
    load[least] = (load[least] as number) + cost(unit);
  }
  return Array.from({ length: count }, (_, device) => {
    const mine = units.filter((unit) => owner.get(unit) === device);
    const merged = new Map<string, Feed>();
    for (const unit of mine) {
      const before = merged.get(unit.id);
      merged.set(unit.id, before ? { ...before, linears: [...before.linears, ...unit.linears] } : unit);
    }
    return [...merged.values()];
  });
}

/**
 * The statistics of one feed over all devices, summed on one of them in the order of the devices, so that each of them
 * gets the same sum. The runtimes that hold them must have been synced. The caller disposes of the result.
 */
export async function gatherStatistics(
  statistics: readonly ReadonlyMap<string, FeedStatistics>[],
  id: string,
  home: NativeRuntime,
): Promise<FeedStatistics> {
  const parts = statistics.map((each) => each.get(id) as FeedStatistics);
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

/** Gives every lane a copy of what one of them solved, by full weight name; returns the copies, for their disposal. */
export async function distribute(
  lanes: readonly Lane[],
  from: Lane,
  replaced: ReadonlyMap<string, Tensor>,
): Promise<Tensor[]> {
  const made: Tensor[] = [];
  if (lanes.length > 1) await from.rt.sync();
  for (const lane of lanes)
    for (const [name, tensor] of replaced) {
      const here = lane === from ? tensor : lane.rt.copyFrom(tensor);
      lane.current.set(name, here);
      if (lane !== from) made.push(here);
    }
  if (lanes.length > 1) await together(lanes.map(({ rt }) => rt.sync()));
  return made;
}
