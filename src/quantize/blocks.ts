import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { disposeStatistics, type FeedStatistics, sweepStatistics } from '../calibrate/statistics.js';
import { LpqError } from '../core/error.js';
import type { Block, BlockWeights, Feed, LinearRef, Stage } from '../model/program.js';
import { disposeWeights } from '../model/weights.js';
import { Assembly, type FinishedModule } from './assembly.js';
import {
  distribute,
  gatherStatistics,
  type Lane,
  onlySum,
  type Part,
  type Replacement,
  type Share,
  type Swept,
  shareOut,
  together,
} from './lanes.js';
import { linearsOf } from './linears.js';
import { clipOf } from './measures.js';
import { type BlockMemory, roomFor } from './memory-plan.js';
import type { Quantizer } from './quantizer.js';
import { disposeModule, downloadModule, type QuantizedModule } from './result.js';
import { nearest } from './round.js';
import type { QuantScheme } from './scheme.js';
import { type Sibling, siblingRuns, solveSiblings } from './siblings.js';
import { handedOver, type Worker, weightsFor, workersOf } from './solving.js';
import { dequantizeResult, type ErrorSums, errorSums } from './stored.js';

export interface BlockContext {
  readonly quantizer: Quantizer;
  readonly schemes: ReadonlyMap<string, QuantScheme>;
  /** Takes the module over; its tensors are disposed of when this returns. */
  readonly onModule: (module: FinishedModule) => Promise<void>;
  readonly onStage: (block: Block, stage: Pick<Stage, 'id'>) => void;
  readonly onWarning?: (line: string, data: object) => void;
}

/** How a block is walked: what it takes on the devices, and what happens on the way. */
export interface Walk {
  readonly memory: BlockMemory;
  /** Bytes of weights that stay on a device meanwhile. */
  readonly held: number;
  /** The first sweep is over: no stream needs the weights of the block before any more. */
  readonly onFirstSweep: () => Promise<void>;
}

/**
 * Quantizes one block stage by stage (true-sequential): every stage's statistics are taken with all stages before it
 * already quantized. The streams follow lazily: they pass the last stage in the first sweep of the next block. Returns the
 * dequantized weights, which the streams need until then.
 */
export function quantizeBlock(
  context: BlockContext,
  block: Block,
  lanes: readonly Lane[],
  walk: Walk,
): Promise<Tensor[]> {
  return walkBlock(context, block, lanes, walk, async (wanted, statistics, made) => {
    const workers = workersOf(lanes, wanted);
    const solved = await shareWork(context, wanted, workers.length, async (shares, index, modules) => {
      const replaced: Replacement[] = [];
      for (const share of shares)
        replaced.push(...(await solveShare(context, workers[index] as Worker, share, statistics, modules)));
      return replaced;
    });
    const byLane = lanes.map((lane) => solved.filter((_, i) => workers[i]?.lane === lane).flat());
    made.push(...(await distribute(lanes, byLane)));
  });
}

/** Whether a method solves a block whole (quantizeWholeBlock()), and not feed by feed. */
export function solvedWhole({ quantizer, schemes }: BlockContext, block: Block): boolean {
  return quantizer.solveBlock !== undefined && linearsOf(block).some(({ name }) => schemes.has(name));
}

/**
 * Takes the streams through a block whose quantized weights are in every lane's `current` already, exactly as the run that
 * solved it: where a device's stream waits between two stages it is rounded (shelf.ts), so it waits where it waited then.
 */
export async function replayBlock(
  context: BlockContext,
  block: Block,
  lanes: readonly Lane[],
  walk: Walk,
  whole: boolean,
): Promise<void> {
  const schemes = whole ? new Map<string, QuantScheme>() : context.schemes;
  await walkBlock({ ...context, schemes }, block, lanes, walk, undefined);
}

type Solve = (wanted: readonly Feed[], statistics: Swept, made: Tensor[]) => Promise<void>;

async function walkBlock(
  context: BlockContext,
  block: Block,
  lanes: readonly Lane[],
  walk: Walk,
  solve: Solve | undefined,
): Promise<Tensor[]> {
  const made: Tensor[] = [];
  try {
    for (const [index, stage] of block.stages.entries()) {
      if (solve) context.onStage(block, stage);
      const wanted = stage.feeds.filter(({ linears }) => linears.some(({ name }) => context.schemes.has(name)));
      if (index === 0 || wanted.length > 0) {
        const ids = new Set(solve ? wanted.map(({ id }) => id) : []);
        const statistics = await together(
          lanes.map(({ rt, streams, current, source }) => {
            const room = roomFor(rt, walk.memory, block, index, walk.held);
            return sweepStatistics(rt, streams, { stage, quantized: current, original: source }, ids, room);
          }),
        );
        try {
          if (index === 0) await walk.onFirstSweep();
          if (solve && wanted.length > 0) await solve(wanted, statistics, made);
        } finally {
          for (const each of statistics.flat()) disposeStatistics(each);
        }
      }
      for (const { streams, current, source } of lanes) {
        streams.quantized.follow({ stage, weights: current });
        streams.original?.follow({ stage, weights: source });
      }
    }
  } catch (error) {
    for (const tensor of made) tensor.dispose();
    throw error;
  }
  return made;
}

/** Shares feeds out over `count` devices and puts the modules together of what each makes of its part. */
export async function shareWork<T>(
  context: BlockContext,
  wanted: readonly Feed[],
  count: number,
  solve: (shares: readonly Share[], device: number, modules: Assembly) => Promise<T>,
): Promise<T[]> {
  const shares = shareOut(wanted, count, ({ name }) => context.schemes.get(name));
  const modules = new Assembly(context.onModule);
  try {
    return await together(shares.map((each, device) => solve(each, device, modules)));
  } finally {
    modules.dispose();
  }
}

/** Quantizes one worker's share of a feed, with the statistics of all lanes; the weights come to its lane's stream. */
async function solveShare(
  context: BlockContext,
  worker: Worker,
  share: Share,
  statistics: Swept,
  modules: Assembly,
): Promise<Replacement[]> {
  const { id } = share.feed;
  const { rt, lane } = worker;
  const alone = rt === lane.rt;
  const only = alone ? onlySum(statistics, id) : undefined;
  if (only) return quantizeShare(context, rt, share, lane.source, only, modules);
  const gathered = await gatherStatistics(statistics, id, rt);
  const weights = alone ? lane.source : weightsFor(worker, share);
  try {
    return await handedOver(worker, await quantizeShare(context, rt, share, weights, gathered, modules));
  } finally {
    disposeStatistics(new Map([[id, gathered]]));
    if (!alone) disposeWeights(weights);
  }
}

const rowsOf = ({ linears }: Feed): number => linears.reduce((sum, { n }) => sum + n, 0);

/** Fewer rows than this fraction of K say too little of a K x K Hessian. */
const FEW_ROWS = 1 / 8;

/** Quantizes the parts of a feed that have a scheme; returns their dequantized weights. */
export async function quantizeShare(
  context: BlockContext,
  rt: NativeRuntime,
  { feed, parts }: Share,
  weights: BlockWeights,
  statistics: FeedStatistics | undefined,
  modules: Assembly,
): Promise<Replacement[]> {
  const k = (feed.linears[0] as LinearRef).k;
  const few = statistics !== undefined && statistics.tokens < Math.ceil(k * FEW_ROWS);
  const solver = few ? nearest(rt) : context.quantizer.feed(rt, statistics, rowsOf(feed));
  const replaced: Replacement[] = [];
  try {
    for (const run of siblingRuns(parts, ({ linear }) => context.schemes.get(linear.name))) {
      const scheme = context.schemes.get((run[0] as Part).linear.name) as QuantScheme;
      const siblings = run.map(({ linear: { name }, first, rows }) => ({
        name,
        weight: (weights.get(`${name}.weight`) as Tensor).view([rows, k], first * k),
      }));
      let solved: QuantizedModule[] = [];
      try {
        solved = await solveSiblings(rt, solver, siblings, scheme);
        for (const [i, part] of run.entries()) {
          const module = solved[i] as QuantizedModule;
          const note = `only ${statistics?.tokens} calibration rows reached it; rounded without them`;
          const { weight } = siblings[i] as Sibling;
          const measures = { ...module.measures, ...(few ? {} : await clipOf(rt, part.linear.name, weight, module)) };
          const result = { ...module, measures, ...(few && { quality: { ...module.quality, note } }) };
          const dequantized = dequantizeResult(rt, result);
          const sums = statistics && (await errorSums(rt, weight, dequantized, statistics.h));
          if (sums) requireFinite(sums, part.linear);
          replaced.push({ part, weight: forActivations(rt, dequantized) });
          const tokens = statistics?.tokens ?? null;
          await modules.add({ part, result: await downloadModule(rt, result), sums, tokens });
        }
      } finally {
        for (const module of solved) disposeModule(module);
        for (const { weight } of siblings) weight.dispose();
      }
    }
  } catch (error) {
    for (const { weight } of replaced) weight.dispose();
    throw error;
  } finally {
    solver.dispose();
  }
  return replaced;
}

/**
 * A weight f32 as the runtime's linears multiply it. Rounding (code - zero) * scale to 16 bits adds noise of 2^-9 of a
 * weight, where quantization to 4 bits makes some 2^-4: a thousandth of its error's power.
 */
export function forActivations(rt: NativeRuntime, weight: Tensor): Tensor {
  if (rt.activationDtype === weight.dtype) return weight;
  const rounded = rt.allocate(rt.activationDtype, weight.shape);
  ops.cast(rt, weight, rounded);
  weight.dispose();
  return rounded;
}

/** LPQ_MODULE_NUMERICS where sums are not finite. */
function requireFinite({ error, norm }: ErrorSums, { name }: LinearRef): void {
  if (Number.isFinite(error) && Number.isFinite(norm)) return;
  throw new LpqError('LPQ_MODULE_NUMERICS', `the weights of ${name} hold NaN or infinity`, {
    hint: 'Download the checkpoint again; lpq inspect DIR --check names every such tensor.',
  });
}
