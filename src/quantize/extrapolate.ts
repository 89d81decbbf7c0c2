import type { BlockCost } from './block-kinds.js';
import type { TrialTimes } from './trial.js';

/** One trial, measured; seconds and bytes. */
export interface Trial {
  readonly times: TrialTimes;
  /** What preparing took (Method.prepare), and of that what comes before its first block. */
  readonly prepared: { readonly seconds: number; readonly fixed: number };
  /** What all steps on the trial's blocks as a whole model would take, with all that follows the blocks, and how large they are. */
  readonly model?: { readonly seconds: number; readonly size: number };
  /** Of its output. */
  readonly bytes: number;
}

/** The run that is foretold. */
export interface WholeRun {
  /** Of all blocks of the model. */
  readonly costs: readonly BlockCost[];
  /** Which of them the run takes. */
  readonly mine: (block: number) => boolean;
  /** For trials with `model`: how large that is. */
  readonly modelSize: number;
  readonly bytes: number;
}

/** Seconds of the run, and of a block of the kind that takes most of them, as it was measured. */
export interface Foretold {
  readonly seconds: number;
  readonly block: { readonly index: number; readonly seconds: number };
}

/**
 * The time of a run by trials of some of its blocks, the larger last: the first trial has what every run pays once, and each kind of block
 * its median behind it. What is not of blocks grows with its products or bytes.
 */
export function extrapolate(trials: readonly Trial[], { costs, mine, modelSize, bytes }: WholeRun): Foretold {
  const [first, last] = [trials[0], trials.at(-1)] as [Trial, Trial];
  const typical = kindSeconds(trials, costs);
  const [main, most] = mainKind(typical, costs, mine);
  const secondsOf = ({ kind, products }: BlockCost) =>
    typical.get(kind)?.seconds ?? (main === undefined ? 0 : (most.seconds * products) / main.products);
  const walked = costs.filter(({ products }, index) => products > 0 && mine(index));
  const blocks = walked.reduce((sum, cost) => sum + secondsOf(cost), 0);
  const at = first.times.ends.findIndex((end) => end !== undefined);
  const opening = costs[first.times.blocks[at] ?? -1];
  const began = first.times.ends[at] ?? first.times.head ?? first.times.end ?? 0;
  const more = began - (opening ? secondsOf(opening) : 0);
  // Of a kind that was measured nowhere else, the first block is what it took.
  const alone = opening && !typical.has(opening.kind) && mine(first.times.blocks[at] as number);
  const once = alone ? more : Math.max(0, more);
  const share = productsOf(walked) / Math.max(1, productsOf(partOf(last, costs)));
  const prepared = last.prepared.fixed + (last.prepared.seconds - last.prepared.fixed) * share;
  const seconds = prepared + once + blocks + headSeconds(first.times) + endSeconds(trials, modelSize, bytes);
  return { seconds, block: { index: most.index, seconds: most.seconds } };
}

const productsOf = (some: readonly BlockCost[]) => some.reduce((sum, { products }) => sum + products, 0);

function partOf({ times }: Trial, costs: readonly BlockCost[]): BlockCost[] {
  return times.blocks.flatMap((index) => costs[index] ?? []);
}

interface Measured {
  readonly index: number;
  readonly seconds: number;
}

/** Medians of blocks by kind, of the last trial that has some: neither the first of all nor, where others are, one with none read ahead. */
function kindSeconds(trials: readonly Trial[], costs: readonly BlockCost[]): Map<string, Measured> {
  const found = new Map<string, Measured>();
  for (const { times } of trials) {
    const steady = new Map<string, Measured[]>();
    const behind = new Map<string, Measured[]>();
    let before: number | undefined;
    for (const [at, end] of times.ends.entries()) {
      const index = times.blocks[at] as number;
      const cost = costs[index];
      if (end === undefined || !cost) continue;
      if (before !== undefined) {
        const into = at === times.blocks.length - 1 ? behind : steady;
        into.set(cost.kind, [...(into.get(cost.kind) ?? []), { index, seconds: end - before }]);
      }
      before = end;
    }
    for (const [kind, measured] of [...behind, ...steady]) found.set(kind, median(measured));
  }
  return found;
}

/** The kind that takes most of the run's time. */
function mainKind(
  typical: ReadonlyMap<string, Measured>,
  costs: readonly BlockCost[],
  mine: (block: number) => boolean,
): [BlockCost | undefined, Measured] {
  let best: [BlockCost | undefined, Measured] = [undefined, { index: 0, seconds: 0 }];
  let most = -1;
  for (const [kind, measured] of typical) {
    const own = costs.filter((cost, index) => cost.kind === kind && mine(index));
    if (own.length * measured.seconds <= most) continue;
    most = own.length * measured.seconds;
    best = [costs.find((cost) => cost.kind === kind), measured];
  }
  return best;
}

function median(measured: readonly Measured[]): Measured {
  const sorted = measured.toSorted((a, b) => a.seconds - b.seconds);
  const [low, high] = [sorted[(sorted.length - 1) >> 1], sorted[sorted.length >> 1]] as [Measured, Measured];
  return { index: low.index, seconds: (low.seconds + high.seconds) / 2 };
}

const lastEnd = ({ ends }: TrialTimes): number => ends.findLast((end) => end !== undefined) ?? 0;

const headSeconds = (times: TrialTimes): number => (times.head === undefined ? 0 : times.head - lastEnd(times));

/** What comes behind the blocks: steps on the whole model, or what there is left to write; 0 where every trial was stopped before. */
function endSeconds(trials: readonly Trial[], modelSize: number, bytes: number): number {
  // What the first trial pays once would tilt the line.
  const warm = trials.length > 2 ? trials.slice(1) : trials.slice(-1);
  const models = warm.flatMap(({ model }) => model ?? []);
  if (models.length > 0) return lineThrough(models, modelSize);
  const ended = trials.findLast(({ times }) => times.end !== undefined);
  if (!ended) return 0;
  const { times } = ended;
  return (((times.end as number) - (times.head ?? lastEnd(times))) * bytes) / Math.max(1, ended.bytes);
}

/** At `size`, by the line through the first and the last point; through 0 where there is one, or that line makes no sense. */
export function lineThrough(
  points: readonly { readonly size: number; readonly seconds: number }[],
  size: number,
): number {
  const [a, b] = [points[0], points.at(-1)] as [(typeof points)[number], (typeof points)[number]];
  const straight = (b.seconds * size) / Math.max(1, b.size);
  if (b.size <= a.size) return straight;
  const slope = (b.seconds - a.seconds) / (b.size - a.size);
  const at = b.seconds + slope * (size - b.size);
  return slope <= 0 || at > straight ? straight : at;
}
